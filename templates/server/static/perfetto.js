// Hands a trace to the Perfetto UI in a window of its own, when asked to and not before: the trace is fetched here, with
// the reader's own session, and given to that window as a message. Perfetto analyses it in the browser.
"use strict";
(() => {
  const PERFETTO = "https://ui.perfetto.dev";
  const PATIENCE_MS = 60000;
  const LARGEST_TEXT = 2e9;
  const ZSTD = [0x28, 0xb5, 0x2f, 0xfd];

  const button = document.getElementById("perfetto");
  const said = document.getElementById("perfetto-said");
  if (!button) return;
  const say = (key) => { said.textContent = said.dataset[key]; };

  // Perfetto answers PONG to PING once it listens; it cannot be seen otherwise when it does.
  const listening = (view) => new Promise((resolve, reject) => {
    const began = Date.now();
    const ask = setInterval(() => {
      if (Date.now() - began > PATIENCE_MS || view.closed) {
        stop();
        reject(new Error("silent"));
        return;
      }
      view.postMessage("PING", PERFETTO);
    }, 100);
    const hear = (event) => {
      if (event.source !== view || event.origin !== PERFETTO || event.data !== "PONG") return;
      stop();
      resolve();
    };
    const stop = () => { clearInterval(ask); removeEventListener("message", hear); };
    addEventListener("message", hear);
  });

  const fetched = async () => {
    const answer = await fetch(button.dataset.raw, { credentials: "same-origin" });
    if (!answer.ok) throw new Error("refused");
    const buffer = await answer.arrayBuffer();
    const start = new Uint8Array(buffer, 0, Math.min(4, buffer.byteLength));
    if (ZSTD.every((byte, at) => start[at] === byte)) throw new Error("zstd");
    return buffer;
  };

  button.addEventListener("click", async () => {
    if (Number(button.dataset.bytes) > LARGEST_TEXT) {
      say("large");
      return;
    }
    const view = window.open(PERFETTO, "_blank");
    if (!view) {
      say("blocked");
      return;
    }
    button.disabled = true;
    say("reading");
    const heard = listening(view);
    heard.catch(() => {}); // told below, after the trace is here
    try {
      const buffer = await fetched();
      say("waiting");
      await heard;
      const title = button.dataset.title;
      view.postMessage({ perfetto: { buffer, title, fileName: title, keepApiOpen: false } }, PERFETTO, [buffer]);
      say("done");
    } catch (error) {
      say(said.dataset[error.message] ? error.message : "refused");
      if (error.message !== "silent") view.close();
    } finally {
      button.disabled = false;
    }
  });
  button.hidden = false;
})();
