// Replace each chart's static picture by the interactive chart; where that fails, the picture stays.
document.querySelectorAll("figure.chart").forEach((figure) => {
  const spec = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  const actions = { export: { svg: true, png: true }, source: false, compiled: false, editor: false };
  figure.classList.add("chart-drawn"); // before drawing: a hidden element has no width
  vegaEmbed(figure.querySelector(".chart-live"), spec, { mode: "vega-lite", renderer: "svg", actions }).catch((error) => {
    figure.classList.remove("chart-drawn");
    console.error(error);
  });
});
