// Cells of a page to edit and to run, where samebytes.live serves the page. Elsewhere this does nothing: the page says
// how to run it. thebe-core, fetched from the same server on the first run, speaks to the kernel; the outputs are put
// into the page as the build puts them, and `samebytes:output` tells the other scripts that there is something to draw.
(() => {
  const told = document.getElementById("live-server");
  const invitation = document.querySelector("details.live");
  if (!told || !invitation) return;
  const server = JSON.parse(told.textContent);
  const HTML = "text/html", SVG = "image/svg+xml", PNG = "image/png", PLAIN = "text/plain";
  const cells = []; // of the page's notebook, in order
  let kernel = null;
  let session = null;
  let last = Promise.resolve(); // runs wait for each other

  const make = (tag, properties, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };

  // -- what the page shows ------------------------------------------------------------------------------------------

  const all = make("button", { type: "button", className: "live-run", textContent: "Run all cells" });
  const state = make("span", { className: "live-state" });
  state.setAttribute("role", "status");
  const bar = make("div", { className: "live-bar d-print-none" }, all, state);
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "Run this page");

  function say(text, kind = "") {
    state.textContent = text;
    bar.dataset.state = kind;
  }

  function unreachable() {
    forget();
    say("No server answers: the cells cannot run. Start it in the clone, open the address that it prints: ", "error");
    state.append(make("code", { textContent: "make live" }));
  }

  // The place of a cell's code; a cell that the build shows without its code gets one.
  function place(element) {
    const input = element.querySelector(":scope > .cell_input, :scope > details.hide > .cell_input");
    if (input) return input;
    const added = make("div", { className: "cell_input docutils container" });
    element.append(make("details", { className: "hide" }, make("summary", {}, make("p", {})), added));
    return added;
  }

  function edit(element, cell) {
    const input = place(element);
    cell.editor = make("textarea", { value: cell.source, rows: cell.source.split("\n").length, spellcheck: false });
    cell.editor.setAttribute("aria-label", "Code of this cell");
    cell.editor.setAttribute("wrap", "off");
    cell.editor.addEventListener("input", () => {
      cell.editor.rows = cell.editor.value.split("\n").length;
    });
    cell.editor.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.shiftKey)) {
        event.preventDefault();
        cell.button.click();
      }
    });
    cell.button = make("button", { type: "button", className: "live-run", textContent: "Run", title: "Ctrl+Enter" });
    cell.button.addEventListener("click", () => queue([cell]));
    const reset = make("button", { type: "button", className: "live-reset", textContent: "Reset" });
    reset.addEventListener("click", () => {
      cell.editor.value = cell.source;
      cell.editor.dispatchEvent(new Event("input"));
    });
    input.replaceChildren(make("div", { className: "live-cell" }, cell.editor, make("p", {}, cell.button, reset)));
    element.querySelectorAll(":scope > details.hide > summary p").forEach((label) => {
      label.textContent = cell.outputs ? "Edit and run this" : "Edit and run what prepares this page";
    });
  }

  function show(cell, outputs) {
    if (!cell.outputs) {
      cell.outputs = make("div", { className: "cell_output docutils container" });
      cell.element.append(cell.outputs);
    }
    cell.outputs.replaceChildren(...outputs.map(render).filter(Boolean));
    cell.outputs.dispatchEvent(new CustomEvent("samebytes:output", { bubbles: true }));
  }

  function render(output) {
    if (output.output_type === "stream") return text("stream", output.text);
    if (output.output_type === "error") return text("traceback", output.traceback.join("\n"));
    const data = output.data;
    if (output.metadata?.scrapbook) return null; // glue: for the text, not to be shown here
    if (HTML in data) return make("div", { className: "output text_html", innerHTML: data[HTML] });
    if (SVG in data) return make("div", { className: "output image_svg", innerHTML: data[SVG] });
    if (PNG in data) return make("img", { src: `data:${PNG};base64,${data[PNG]}`, alt: data[PLAIN] ?? "" });
    return text("text_plain", data["text/markdown"] ?? data[PLAIN] ?? "");
  }

  function text(kind, value) {
    // eslint-disable-next-line no-control-regex
    return make("div", { className: `output ${kind}` }, make("pre", { textContent: value.replace(/\x1b\[[0-9;]*m/g, "") }));
  }

  // -- the kernel ---------------------------------------------------------------------------------------------------

  function load(url) {
    return new Promise((resolve, reject) => {
      document.head.append(make("script", { src: url, onload: resolve, onerror: () => reject(new Error(url)) }));
    });
  }

  async function connect() {
    if (!window.thebeCore) await load(server.thebe);
    const api = window.thebeCore.api;
    const { path, kernel: kernelName } = server;
    const config = api.makeConfiguration({
      serverSettings: { baseUrl: location.origin + server.base, token: server.token, appendToken: true },
      kernelOptions: { path, kernelName },
      savedSessionOptions: { enabled: false },
    });
    const jupyter = api.makeServer(config);
    await Promise.all([jupyter.ready, jupyter.connectToJupyterServer()]);
    session = await jupyter.startNewSession(api.makeRenderMimeRegistry(config.mathjax), { path, kernelName });
    kernel = session.kernel;
  }

  function forget() {
    session?.dispose();
    session = kernel = null;
  }

  // Resolve once the kernel is done; reject where it died or the server is gone.
  function done(future) {
    return new Promise((resolve, reject) => {
      const check = () => {
        if (kernel.status === "dead" || kernel.connectionStatus !== "connected") reject(new Error("kernel lost"));
      };
      kernel.statusChanged.connect(check);
      kernel.connectionStatusChanged.connect(check);
      future.done.then(resolve, reject).finally(() => {
        kernel?.statusChanged.disconnect(check);
        kernel?.connectionStatusChanged.disconnect(check);
      });
    });
  }

  async function execute(cell) {
    const outputs = [];
    const future = kernel.requestExecute({ code: cell.editor ? cell.editor.value : cell.source, stop_on_error: true });
    future.onIOPub = ({ header, content }) => {
      const previous = outputs[outputs.length - 1];
      if (header.msg_type === "stream" && previous?.name === content.name) previous.text += content.text;
      else if (["stream", "error", "display_data", "execute_result"].includes(header.msg_type))
        outputs.push({ output_type: header.msg_type, ...content });
    };
    cell.element?.setAttribute("aria-busy", "true");
    try {
      await done(future);
    } finally {
      cell.element?.removeAttribute("aria-busy");
    }
    if (cell.element) show(cell, outputs);
    return !outputs.some((output) => output.output_type === "error");
  }

  // Run cells one after the other; a new kernel first runs all of the page's, the hidden ones too.
  async function run(wanted) {
    try {
      if (!kernel) {
        say("Starting a kernel …", "busy");
        await connect();
        wanted = cells;
      }
      for (const [index, cell] of wanted.entries()) {
        say(wanted.length > 1 ? `Running cell ${index + 1} of ${wanted.length} …` : "Running …", "busy");
        if (!(await execute(cell))) {
          say("A cell failed: its message stands in its place.", "error");
          cell.element?.scrollIntoView({ block: "nearest" });
          return;
        }
      }
      say("Done: what you see was computed just now.", "done");
    } catch (error) {
      console.warn(error);
      unreachable();
    }
  }

  function queue(wanted) {
    const buttons = document.querySelectorAll("button.live-run");
    buttons.forEach((button) => (button.disabled = true));
    last = last.then(() => run(wanted)).finally(() => buttons.forEach((button) => (button.disabled = false)));
  }

  // A page that is left needs no kernel: the server would keep it.
  window.addEventListener("pagehide", () => {
    if (!session) return;
    const headers = { Authorization: `token ${server.token}` };
    fetch(`${server.base}api/sessions/${session.id}`, { method: "DELETE", keepalive: true, headers });
    forget();
  });

  fetch(invitation.dataset.notebook)
    .then((answer) => answer.json())
    .then((notebook) => {
      for (const found of notebook.cells.filter((cell) => cell.cell_type === "code")) {
        const element = document.getElementById(found.id);
        const cell = { element, source: [found.source].flat().join(""), editor: null };
        cell.outputs = element?.querySelector(":scope > .cell_output");
        if (element) edit(element, cell); // not the notebook's own first cell, which the page does not have
        cells.push(cell);
      }
      all.addEventListener("click", () => queue(cells));
      say("Edit any cell below and run it here.");
      invitation.replaceWith(bar);
    });
})();
