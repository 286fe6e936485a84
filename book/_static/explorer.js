// Compare any two configs' answers to a prompt. The texts stand on the page; they are read from there and shown as text.
// An address ends in #STUDY/CONFIG/PROMPT, or #STUDY/CONFIG@REFERENCE/PROMPT where the reference is not the first one.
(() => {
  "use strict";

  const SIGNS = {
    "same bytes": "=",
    "same bytes, other tokens": "≈",
    differs: "≠",
    "differs in length": "≠",
    "differs, no control": "≠",
    intermittent: "~",
    "not attributable": "?",
    "not answered": "–",
  };
  const END = "∎";

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    made.append(...children);
    return made;
  }

  function fill(select, options) {
    select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  }

  const same = (verdict) => verdict.startsWith("same bytes");

  // A code point's index as an index of UTF-16 units.
  const units = (text, points) => [...text].slice(0, points).join("").length;

  function enhance(root) {
    const studies = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    const live = root.querySelector(".explorer-live");
    const still = root.querySelector(".explorer-static");
    const prompts = new Map();
    const answers = new Map();
    still.querySelectorAll("pre[data-sha256]").forEach((pre) => prompts.set(pre.dataset.sha256, pre.textContent));
    still.querySelectorAll("pre[data-answer]").forEach((pre) => {
      const { study, prompt, answer, part } = pre.dataset;
      answers.set([study, prompt, answer, part].join("\n"), pre.textContent);
    });
    const loading = new Map(); // of studies whose answers are not on the page
    const now = { study: null, pair: null, prompt: null, side: 0 };

    const study = element("select", { "data-do": "study" });
    const config = element("select", { "data-do": "config" });
    const reference = element("select", { "data-do": "reference" });
    const side = element("select", { "data-do": "runs" });
    const only = element("input", { type: "checkbox", "data-do": "only" });
    const sideLabel = element("label", {}, "runs ", side);
    const list = element("div", { class: "explorer-list", role: "group", "aria-label": "prompts and their verdicts" });
    const title = element("div", { class: "explorer-name" });
    const said = element("p", { class: "explorer-said", "aria-live": "polite" });
    const asked = element("pre", { tabindex: "0", "data-shown": "prompt", role: "region", "aria-label": "prompt" });
    const panes = element("div", { class: "explorer-panes" });
    fill(study, studies.map((each, i) => [String(i), each.title]));
    live.append(
      element(
        "div",
        { class: "explorer-bar" },
        element("label", {}, "study ", study),
        element("label", {}, "config ", config),
        element("label", {}, "against ", reference),
        element("label", {}, only, " only what differs"),
      ),
      list,
      title,
      said,
      sideLabel,
      element("details", { class: "explorer-prompt" }, element("summary", {}, "The prompt"), asked),
      panes,
    );

    const verdict = (prompt) => now.pair.prompts[prompt].verdict;
    const configs = () => [...new Set(now.study.pairs.map((pair) => pair.config))];
    const references = (name) => now.study.pairs.filter((pair) => pair.config === name);

    // -- what is chosen

    function chooseStudy(found) {
      now.study = found;
      if (found.data && !loading.has(found)) {
        loading.set(found, "…");
        load(found).then(
          () => loading.set(found, null),
          () => loading.set(found, `The answers are in ${found.data}, and could not be loaded: a page opened from a disk may load nothing.`),
        ).then(() => now.study === found && drawSide());
      }
      study.value = String(studies.indexOf(found));
      fill(config, configs().map((name) => [name, name]));
    }

    async function load(found) {
      const file = await (await fetch(found.data)).json();
      file.rows.forEach((row) => {
        ["text", "reasoning"].forEach((part) => answers.set([row.study, row.prompt, row.answer, part].join("\n"), row[part]));
      });
    }

    function chooseConfig(name, wanted) {
      const pairs = references(name);
      config.value = name;
      fill(reference, pairs.map((pair) => [pair.reference, pair.reference === name ? `${name} (its own repeats)` : pair.reference]));
      now.pair = pairs.find((pair) => pair.reference === wanted) || pairs[0];
      reference.value = now.pair.reference;
    }

    function choosePrompt(id) {
      now.prompt = now.study.prompts.find((each) => each.id === id) || firstPrompt();
      now.side = 0;
    }

    // The first prompt whose answers differ.
    function firstPrompt() {
      return now.study.prompts.find((each) => !same(verdict(each.id))) || now.study.prompts[0];
    }

    // The first config that changes an answer: there is something to see.
    function firstConfig() {
      const pair = now.study.pairs.find((each) => each.reference !== each.config && Object.values(each.prompts).some((p) => !same(p.verdict)));
      return (pair || now.study.pairs[0]).config;
    }

    function fromAddress() {
      const [name, second, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
      const found = studies.find((each) => each.name === name);
      if (!found || !second) return false;
      const [wanted, against] = second.split("@");
      chooseStudy(found);
      if (!configs().includes(wanted)) return false;
      chooseConfig(wanted, against);
      choosePrompt(rest.join("/"));
      return true;
    }

    function toAddress() {
      const against = now.pair === references(now.pair.config)[0] ? "" : `@${now.pair.reference}`;
      history.replaceState(null, "", `#${[now.study.name, now.pair.config + against, now.prompt.id].map(encodeURI).join("/")}`);
    }

    // -- what is shown

    function drawList() {
      const groups = new Map();
      now.study.prompts.forEach((each) => groups.set(each.group, [...(groups.get(each.group) || []), each]));
      list.replaceChildren();
      groups.forEach((members, name) => {
        const differing = members.filter((each) => !same(verdict(each.id))).length;
        const box = element("div", {}, element("div", { class: "explorer-title" }, `${name}: ${differing} of ${members.length} differ`));
        members.filter((each) => !only.checked || !same(verdict(each.id))).forEach((each) => {
          const short = each.id.slice(each.workload.length + 1);
          const current = each === now.prompt;
          box.append(
            element(
              "button",
              { type: "button", "data-prompt": each.id, "data-verdict": verdict(each.id), title: `${each.id}: ${verdict(each.id)}`, "aria-pressed": String(current) },
              element("span", { class: "explorer-sign", "aria-hidden": "true" }, SIGNS[verdict(each.id)] || "≠"),
              element("span", { class: "explorer-short" }, short),
              element("span", { class: "explorer-word" }, `, ${verdict(each.id)}`),
            ),
          );
        });
        list.append(box);
      });
      const current = list.querySelector('[aria-pressed="true"]');
      const below = (current?.offsetTop ?? 0) - list.scrollTop;
      if (below < 0 || below > list.clientHeight - 30) list.scrollTop += below - list.clientHeight / 2;
    }

    // The runs of one side that gave an answer.
    function gave(name, answer) {
      return now.study.configs[name].filter((label) => now.prompt.runs[label] === answer);
    }

    function drawSide() {
      const found = now.pair.prompts[now.prompt.id];
      const shown = found.sides[now.side];
      const both = (each) => [gave(now.pair.reference, each.a).join(", "), gave(now.pair.config, each.b).join(", ")];
      title.textContent = now.prompt.id;
      asked.textContent = prompts.get(now.prompt.sha256) ?? "not at hand: the project holds no prompt of the bytes that were sent";
      fill(side, found.sides.map((each, i) => [String(i), `${both(each).join(" and ")}${each.char === undefined ? ": same bytes" : ""}`]));
      side.value = String(now.side);
      sideLabel.hidden = found.sides.length < 2;
      said.textContent = sentence(found.verdict, shown);
      panes.replaceChildren();
      if (!shown) {
        Object.entries(now.prompt.runs).forEach(([label, answer]) => panes.append(pane(label, answer, "text")));
      } else if (shown.a === shown.b) {
        const runs = new Set([...gave(now.pair.reference, shown.a), ...gave(now.pair.config, shown.b)]);
        panes.append(pane([...runs].join(", "), shown.a, "text"));
      } else {
        const [one, two] = both(shown);
        panes.append(pane(one, shown.a, shown.part, shown.char), pane(two, shown.b, shown.part, shown.char));
      }
      panes.querySelectorAll("pre").forEach((pre) => {
        const mark = pre.querySelector("mark");
        pre.scrollTop = mark ? mark.offsetTop - pre.clientHeight / 3 : 0;
      });
    }

    function sentence(word, shown) {
      if (!shown) return `Verdict: ${word}.`;
      const token = shown.token === undefined ? [] : [`token ${shown.token}`];
      if (shown.char === undefined) {
        return `Verdict: ${word}.` + (token.length ? ` The same bytes from other tokens, from ${token[0]} on, counted from zero.` : "");
      }
      const place = [`character ${shown.char}`, `byte ${shown.byte}`, ...token].join(", ");
      const tokens = shown.tokens ? ` Tokens there: ${shown.tokens.map((t) => (t === "" ? "none, the answer is over" : JSON.stringify(t))).join(" and ")}.` : "";
      const where = shown.part === "reasoning" ? " of the reasoning" : "";
      return `Verdict: ${word}. First difference at ${place}${where}, counted from zero.${tokens}`;
    }

    function pane(runs, answer, part, char) {
      const text = answers.get([now.study.name, now.prompt.id, answer, part].join("\n"));
      const pre = element("pre", { tabindex: "0", role: "region", "aria-label": `answer of ${runs}`, "data-shown": "answer" });
      if (text === undefined) {
        pre.textContent = loading.get(now.study) ?? "";
      } else if (char === undefined) {
        pre.textContent = text;
      } else {
        const at = units(text, char);
        const first = [...text.slice(at, at + 2)][0] ?? "";
        const mark = element("mark", { class: "explorer-first" }, first === "" ? END : first === "\n" ? "⏎\n" : first);
        pre.append(element("span", { class: "explorer-common" }, text.slice(0, at)), mark, text.slice(at + first.length));
      }
      return element("div", { class: "explorer-pane" }, element("div", { class: "explorer-title" }, runs), pre);
    }

    function draw(address = true) {
      drawList();
      drawSide();
      if (address) toAddress();
    }

    // -- what a reader does

    study.addEventListener("change", () => {
      chooseStudy(studies[Number(study.value)]);
      chooseConfig(configs().includes(now.pair.config) ? now.pair.config : firstConfig(), now.pair.reference);
      choosePrompt(now.prompt.id);
      draw();
    });
    config.addEventListener("change", () => {
      chooseConfig(config.value, now.pair.reference);
      choosePrompt(now.prompt.id);
      draw();
    });
    reference.addEventListener("change", () => {
      chooseConfig(config.value, reference.value);
      choosePrompt(now.prompt.id);
      draw();
    });
    side.addEventListener("change", () => {
      now.side = Number(side.value);
      drawSide();
    });
    only.addEventListener("change", drawList);
    list.addEventListener("click", (event) => {
      const wanted = event.target.closest("button[data-prompt]");
      if (wanted) pick(wanted.dataset.prompt);
    });
    list.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
      const buttons = [...list.querySelectorAll("button")];
      const next = buttons[buttons.indexOf(document.activeElement) + step];
      if (!step || !next) return;
      event.preventDefault();
      pick(next.dataset.prompt);
    });
    window.addEventListener("hashchange", () => {
      if (fromAddress()) draw(false);
    });

    function pick(id) {
      choosePrompt(id);
      draw();
      list.querySelector('[aria-pressed="true"]')?.focus();
    }

    live.hidden = false;
    still.hidden = true;
    if (fromAddress()) {
      (root.closest("figure") ?? root).scrollIntoView();
    } else {
      chooseStudy(studies[0]);
      chooseConfig(firstConfig());
      choosePrompt();
    }
    draw(false);
  }

  const all = (part) => part.querySelectorAll("[data-explorer]").forEach(enhance);
  all(document);
  document.addEventListener("samebytes:output", (event) => all(event.target)); // a cell was run in the page
})();
