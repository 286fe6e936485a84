// Step through recorded answers: what n-gram speculation looked up, drafted, and what of it the model confirmed.
// What the records hold gets into the page as text only.
(() => {
  "use strict";

  const VISIBLE = { "\n": "⏎", "\t": "⇥", " ": "␣" };
  const PLAY_MS = 1200;
  const LEGEND = [
    ["looked", "looked up, and where it stood before"],
    ["copied", "what followed there: the draft"],
    ["accepted", "accepted"],
    ["rejected", "rejected"],
    ["own", "the model’s own token"],
  ];

  const visible = (text) => text.replace(/[\n\t ]/g, (c) => VISIBLE[c]);
  const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    made.append(...children);
    return made;
  }

  const button = (name) => element("button", { type: "button", "data-do": name }, name);

  function pane(title) {
    const text = element("pre", { class: "stepper-text", tabindex: "0", role: "region", "aria-label": title });
    return { text, whole: element("div", { class: "stepper-pane" }, element("div", { class: "stepper-title" }, title), text) };
  }

  // Where the engine stands before and after step i, and what of the draft lies where.
  function counters(answer, i) {
    const seen = answer.steps.slice(0, i + 1);
    const sum = (of) => seen.reduce((total, step) => total + of(step), 0);
    const tokens = sum((step) => step.tokens);
    return {
      steps: seen.length,
      tokens,
      rate: tokens / seen.length,
      drafts: sum((step) => (step.draft.length ? 1 : 0)),
      draft_tokens: sum((step) => step.draft.length),
      accepted_tokens: sum((step) => step.accepted),
    };
  }

  function summary(answer, i) {
    const step = answer.steps[i];
    const start = `Step ${i + 1} of ${answer.steps.length}.`;
    const end = `${plural(step.tokens, "token")} in one step.`;
    if (!step.draft.length) {
      const why = i === 0
        ? "The prompt’s own step: nothing is drafted yet."
        : `The last ${answer.settings.min_n} tokens never occurred before: nothing to draft.`;
      return `${start} ${why} The model says its own token. ${end}`;
    }
    const where = step.start === null ? null : step.start < answer.prompt_tokens ? "the prompt" : "the model’s own answer";
    const found = where === null
      ? "The last tokens never occurred before: the draft is filling."
      : `The last ${plural(step.n, "token")} occurred before, in ${where}.`;
    const judged = `${step.draft.length} drafted, ${step.accepted} accepted`;
    const own = step.own === null
      ? "and with them the answer is over; what is left of the draft nobody reads."
      : step.accepted === step.draft.length ? "then one bonus token of the model’s own." : "then the model’s own token instead.";
    return `${start} ${found} ${judged}, ${own} ${end}`;
  }

  // Put tokens from..to into a pane; marks are [class, from, to].
  function write(box, pieces, from, to, marks) {
    const inside = marks.map(([kind, a, b]) => [kind, Math.max(a, from), Math.min(b, to)]).filter(([, a, b]) => a < b);
    const cuts = [...new Set([from, to, ...inside.flatMap(([, a, b]) => [a, b])])].sort((a, b) => a - b);
    box.replaceChildren();
    cuts.slice(0, -1).forEach((a, i) => {
      const text = pieces.slice(a, cuts[i + 1]).join("");
      const kinds = inside.filter(([, low, high]) => low <= a && a < high).map(([kind]) => `s-${kind}`);
      box.append(kinds.length ? element("mark", { class: kinds.join(" ") }, text) : text);
    });
  }

  function show(box, mark) {
    box.scrollTop = mark ? mark.offsetTop - box.clientHeight / 3 : box.scrollHeight;
  }

  function enhance(root) {
    const answers = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    const live = root.querySelector(".stepper-live");
    const still = root.querySelector(".stepper-static");
    let answer = answers[0];
    let at = 0;
    let timer = null;

    const choice = element("select", { "data-do": "answer" });
    answers.forEach((each, i) => choice.append(element("option", { value: String(i) }, `${each.prompt} · ${each.study}`)));
    const slider = element("input", { type: "range", min: "0", step: "1", "data-do": "seek", "aria-label": "step" });
    const buttons = ["first", "back", "play", "next", "last"].map(button);
    const play = buttons[2];
    const said = element("p", { class: "stepper-said", "aria-live": "polite" });
    const draft = element("ol", { class: "stepper-draft", "aria-label": "the draft, token by token" });
    const prompt = pane("Prompt");
    const output = pane("Answer so far");
    const totals = element("dl", { class: "stepper-counters" });
    const equal = element("p", { class: "stepper-equal" });
    const legend = element("ul", { class: "stepper-legend" });
    LEGEND.forEach(([kind, what]) => legend.append(element("li", {}, element("mark", { class: `s-${kind}` }, "abc"), ` ${what}`)));
    live.append(
      element("label", { class: "stepper-choice" }, "Answer ", choice),
      element("div", { class: "stepper-bar" }, ...buttons, slider),
      said,
      draft,
      element("div", { class: "stepper-panes" }, prompt.whole, output.whole),
      legend,
      totals,
      equal,
    );
    live.setAttribute("role", "group");
    live.setAttribute("aria-label", "Step through a recorded answer; the arrow keys step");
    live.setAttribute("tabindex", "0");

    function chips(step) {
      draft.replaceChildren();
      step.draft.forEach((token, i) => {
        const [kind, sign, word] = i < step.accepted
          ? ["accepted", "✓", "accepted"]
          : step.own === null ? ["beyond", "…", "after the answer’s end"] : ["rejected", "✗", "rejected"];
        draft.append(element("li", { class: `s-chip s-${kind}`, title: word }, element("code", {}, visible(token)), ` ${sign}`));
      });
      if (step.own !== null) {
        draft.append(element("li", { class: "s-chip s-own", title: "the model’s own token" }, element("code", {}, visible(step.own)), " +"));
      }
    }

    function texts(step) {
      const first = answer.prompt_tokens;
      const end = first + step.at;
      const marks = [];
      if (step.start !== null) {
        marks.push(["looked", end - step.n, end], ["looked found", step.start - step.n, step.start]);
        marks.push(["copied", step.start, Math.min(step.start + step.draft.length, end)]);
      }
      write(prompt.text, answer.pieces, 0, first, marks);
      write(output.text, answer.pieces, first, end, marks);
      const added = answer.pieces.slice(end, end + step.tokens);
      if (step.accepted) {
        output.text.append(element("mark", { class: "s-accepted" }, added.slice(0, step.accepted).join("")));
      }
      if (step.own !== null && step.accepted < step.draft.length) {
        output.text.append(element("mark", { class: "s-rejected" }, visible(step.draft.slice(step.accepted).join(""))));
      }
      if (step.own !== null) output.text.append(element("mark", { class: "s-own" }, added[step.accepted] || step.own));
      const found = prompt.text.querySelector(".found");
      if (found) show(prompt.text, found);
      show(output.text, output.text.querySelector(".found"));
    }

    function numbers() {
      const found = counters(answer, at);
      const rows = [
        ["steps", "steps", found.steps],
        ["tokens", "tokens", found.tokens],
        ["rate", "tokens per step", found.rate.toFixed(2)],
        ["drafts", "drafts", found.drafts],
        ["draft_tokens", "draft tokens", found.draft_tokens],
        ["accepted_tokens", "accepted", found.accepted_tokens],
      ];
      totals.replaceChildren();
      rows.forEach(([name, what, value]) => {
        totals.append(element("div", {}, element("dt", {}, what), element("dd", { "data-counter": name }, String(value))));
      });
      const last = at === answer.steps.length - 1;
      equal.hidden = !last;
      if (!last) return;
      const server = answer.server;
      const same = found.drafts === server.drafts && found.draft_tokens === server.draft_tokens;
      const beyond = server.accepted_tokens - found.accepted_tokens;
      equal.textContent =
        `The server counted ${plural(server.drafts, "draft")}, ${server.draft_tokens} draft tokens and ${server.accepted_tokens} accepted: ` +
        (same ? "the same" : "not the same") +
        (beyond ? `, with ${beyond} more accepted after the answer’s end.` : ".");
    }

    function go(to) {
      at = Math.max(0, Math.min(to, answer.steps.length - 1));
      const step = answer.steps[at];
      live.dataset.step = String(at + 1);
      slider.max = String(answer.steps.length - 1);
      slider.value = String(at);
      slider.setAttribute("aria-valuetext", `step ${at + 1} of ${answer.steps.length}`);
      said.textContent = summary(answer, at);
      chips(step);
      texts(step);
      numbers();
    }

    function stop() {
      clearInterval(timer);
      timer = null;
      play.textContent = "play";
      said.setAttribute("aria-live", "polite");
    }

    function start() {
      said.setAttribute("aria-live", "off"); // else every step is read out over the one before
      play.textContent = "pause";
      if (at === answer.steps.length - 1) go(0);
      timer = setInterval(() => {
        go(at + 1);
        if (at === answer.steps.length - 1) stop();
      }, PLAY_MS);
    }

    const actions = {
      first: () => go(0),
      back: () => go(at - 1),
      next: () => go(at + 1),
      last: () => go(answer.steps.length - 1),
    };
    live.addEventListener("click", (event) => {
      const wanted = event.target.closest("button[data-do]");
      if (!wanted) return;
      const playing = timer !== null;
      stop();
      if (wanted.dataset.do !== "play") actions[wanted.dataset.do]();
      else if (!playing) start();
    });
    slider.addEventListener("input", () => {
      stop();
      go(Number(slider.value));
    });
    choice.addEventListener("change", () => {
      stop();
      answer = answers[Number(choice.value)];
      go(0);
    });
    live.addEventListener("keydown", (event) => {
      const wanted = { ArrowLeft: "back", ArrowRight: "next", Home: "first", End: "last" }[event.key];
      if (!wanted || event.target.matches("select, input") || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      stop();
      actions[wanted]();
    });

    live.hidden = false;
    still.hidden = true;
    go(0);
  }

  const all = (part) => part.querySelectorAll("[data-stepper]").forEach(enhance);
  all(document);
  document.addEventListener("samebytes:output", (event) => all(event.target)); // a cell was run in the page
})();
