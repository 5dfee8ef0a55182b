// Search in a site that was opened from a folder: a browser starts no worker from a file, so a hidden frame plays one.
//
// The theme's search talks to a Worker by messages. Here the worker's script runs in a frame of its own, whose
// postMessage leads out, and messages to it wait until the script is there. With a server nothing is changed.

if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) => Promise.all(urls.map((one) => this.load(one)));
      this.load(url).then(() => {
        const waiting = this.waiting;
        this.waiting = null;
        for (const data of waiting) this.postMessage(data);
      });
    }

    load(url) {
      const inside = this.frame.contentDocument;
      return new Promise((done, failed) => {
        const script = inside.createElement("script");
        script.src = url;
        script.onload = done;
        script.onerror = () => failed(new Error(`${url} cannot be loaded`));
        inside.body.append(script);
      });
    }

    postMessage(data) {
      if (this.waiting !== null) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
