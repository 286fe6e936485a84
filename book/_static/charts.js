// Replace each chart's static picture by the interactive chart; where that fails, the picture stays.
(() => {
  function draw(figure) {
    const spec = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const actions = { export: { svg: true, png: true }, source: false, compiled: false, editor: false };
    const options = { mode: "vega-lite", renderer: "svg", actions };
    figure.classList.add("chart-drawn"); // before drawing: a hidden element has no width
    vegaEmbed(figure.querySelector(".chart-live"), spec, options).catch((error) => {
      figure.classList.remove("chart-drawn");
      console.error(error);
    });
  }

  document.querySelectorAll("figure.chart").forEach(draw);
  // a cell that was run in the page (live.js) left new figures
  document.addEventListener("samebytes:output", (event) => event.target.querySelectorAll("figure.chart").forEach(draw));
})();
