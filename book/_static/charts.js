// Replace each chart's static picture by the interactive chart; where that fails, the picture stays.
// Text and lines are drawn in currentColor, so that they follow the page's theme.
(() => {
  // what a tooltip shows of a value: text, never markup; Vega writes NaN where there is none
  const shown = (value) =>
    (["NaN", "null"].includes(String(value)) ? "–" : String(value)).replace(/&/g, "&amp;").replace(/</g, "&lt;");

  function draw(figure) {
    const spec = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const live = figure.querySelector(".chart-live");
    const actions = { export: { svg: true, png: true }, source: false, compiled: false, editor: false };
    figure.classList.add("chart-drawn"); // before drawing: a hidden element has no width
    if (live.clientWidth < 480) spec.config.legend.columns = 1; // side by side they would be cut off
    vegaEmbed(live, spec, { mode: "vega-lite", renderer: "svg", actions, tooltip: { sanitize: shown } })
      .then(() => {
        if (live.scrollWidth > live.clientWidth) live.tabIndex = 0; // to be scrolled from the keyboard
        live.querySelector("summary")?.setAttribute("aria-label", "Save this chart"); // it shows three dots only
        // lines without a name say nothing to those who listen; the chart's description and table say all
        live.querySelectorAll('[role="graphics-symbol"]:not([aria-label])').forEach((mark) => (mark.ariaHidden = "true"));
      })
      .catch((error) => {
        figure.classList.remove("chart-drawn");
        console.error(error);
      });
  }

  document.querySelectorAll("figure.chart").forEach(draw);
  // a cell that was run in the page (live.js) left new figures
  document.addEventListener("samebytes:output", (event) => event.target.querySelectorAll("figure.chart").forEach(draw));
})();
