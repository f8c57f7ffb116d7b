// The search runs in a worker, which a browser does not start for a page that is opened as a file. There the script runs
// in a hidden frame. mkdocs-material would load such a replacement, called IFrameWorker as it must be, from the network.
class IFrameWorker extends EventTarget {
  constructor(address) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    const page = frame.contentDocument, inside = frame.contentWindow;
    page.open();
    page.write("<!DOCTYPE html><body></body>");
    page.close();
    const load = (source) => new Promise((done, failed) => page.body.append(
      Object.assign(page.createElement("script"), { src: source, onload: done, onerror: failed })));
    inside.importScripts = (...sources) => sources.reduce(
      (before, source) => before.then(() => load(source)), Promise.resolve());
    inside.postMessage = (data) => {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    };
    const loaded = load(address);
    this.postMessage = (data) => {
      const copy = structuredClone(data);
      loaded.then(() => inside.dispatchEvent(new MessageEvent("message", { data: copy })));
    };
    this.terminate = () => frame.remove();
  }
}
window.IFrameWorker = IFrameWorker;
if (location.protocol === "file:") window.Worker = IFrameWorker;
