// Set k, min and max of n-gram speculation and read what is predicted for the recorded answers.
(() => {
  "use strict";

  const FLAGS = ["num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"];
  const HINTS = ["k: tokens drafted at most", "min: shortest text looked up", "max: longest text looked up"];
  const SHOW = {
    speed_up: (value) => value.toFixed(2),
    acceptance_rate: (value) => (100 * value).toFixed(0),
    tokens_per_step: (value) => value.toFixed(2),
  };
  const SAY_MS = 400; // a slider that is dragged is read out once it rests

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    made.append(...children);
    return made;
  }

  function start(root, number) {
    const content = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    const index = new Map(content.grid.map((settings, i) => [settings.join(), i]));
    const limits = FLAGS.map((_, i) => content.grid.map((settings) => settings[i]));
    const flag = root.querySelector("[data-flag]");
    let chosen = [...content.start];
    let timer = 0;

    const sliders = FLAGS.map((name, i) => {
      const id = `tuner-${number}-${i}`;
      const hint = element("small", { id: `${id}-hint` }, HINTS[i]);
      const shown = element("span", { "aria-hidden": "true" }); // a slider says its value itself
      const input = element("input", {
        type: "range", id, step: 1, min: Math.min(...limits[i]), max: Math.max(...limits[i]), "aria-describedby": hint.id,
      });
      input.addEventListener("input", () => set(i, Number(input.value)));
      const label = element("label", { for: id }, element("code", {}, name));
      return { input, shown, whole: element("div", { class: "tuner-slider" }, label, input, shown, hint) };
    });
    const presets = [["the article’s", content.start]];
    content.studies.forEach((study) => {
      presets.push([`best on ${study.machine}`, study.best]);
      if (study.sure.join() !== study.best.join()) presets.push([`best on ${study.machine} of measured lengths`, study.sure]);
    });
    const buttons = presets.map(([name, settings]) => {
      const made = element("button", { type: "button" }, name);
      made.addEventListener("click", () => show([...settings]));
      return made;
    });
    const said = element("p", { class: "tuner-said", role: "status", "aria-live": "polite" });

    // The longest lookup is never shorter than the shortest: the slider that is moved takes the other along.
    function set(i, value) {
      const next = [...chosen];
      next[i] = value;
      if (i === 1) next[2] = Math.max(next[2], value);
      if (i === 2) next[1] = Math.min(next[1], value);
      show(next);
    }

    function show(settings) {
      chosen = settings;
      const at = index.get(chosen.join());
      sliders.forEach(({ input, shown }, i) => {
        input.value = chosen[i];
        shown.textContent = chosen[i];
      });
      root.querySelectorAll("[data-at]").forEach((cell) => {
        const [study, group, name] = cell.dataset.at.split(".");
        const value = content.studies[study].groups[group][name][at];
        const figure = cell.querySelector("data");
        figure.value = value === null ? "" : value;
        figure.textContent = value === null ? "–" : SHOW[name](value);
        if (name === "speed_up") cell.classList.toggle("tuner-slower", value < 1);
      });
      root.querySelectorAll("[data-k] data").forEach((figure) => {
        figure.value = chosen[0];
        figure.textContent = chosen[0];
      });
      root.querySelectorAll("[data-study]").forEach((part) => {
        part.querySelector("[data-known]").textContent = content.studies[part.dataset.study].known[chosen[0] - 1];
      });
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", presets[i][1].join() === chosen.join()));
      const value = {
        method: "ngram",
        num_speculative_tokens: chosen[0],
        prompt_lookup_max: chosen[2],
        prompt_lookup_min: chosen[1],
      };
      const pasted = JSON.stringify(value).replace(/":/g, '": ').replace(/,"/g, ', "');
      const figure = flag.querySelector("data");
      figure.value = figure.textContent = `--speculative-config '${pasted}'`;
      clearTimeout(timer);
      timer = setTimeout(() => { said.textContent = sentence(at); }, SAY_MS);
    }

    function sentence(at) {
      const parts = content.studies.map((study) => {
        const now = study.groups.all.speed_up[at];
        const usual = study.groups.all.speed_up[index.get(content.start.join())];
        return `${study.machine}: ${now.toFixed(2)} times the baseline over all prompts (the article’s settings: `
          + `${usual.toFixed(2)}), cost ${study.known[chosen[0] - 1]}`;
      });
      return `k ${chosen[0]}, min ${chosen[1]}, max ${chosen[2]}. Predicted for ${parts.join("; for ")}.`;
    }

    const live = root.querySelector(".tuner-live");
    live.append(
      ...sliders.map(({ whole }) => whole),
      element("div", { class: "tuner-presets", role: "group", "aria-label": "settings" }, ...buttons),
      said,
    );
    if (navigator.clipboard) {
      const copy = element("button", { type: "button" }, "Copy");
      copy.addEventListener("click", () => navigator.clipboard.writeText(flag.textContent).then(
        () => { said.textContent = "The flag was copied."; },
        () => { said.textContent = "The flag could not be copied."; },
      ));
      flag.after(copy);
    }
    live.hidden = false;
    show(chosen);
  }

  const all = (part) => part.querySelectorAll("[data-tuner]").forEach(start);
  all(document);
  document.addEventListener("samebytes:output", (event) => all(event.target)); // a cell was run in the page
})();
