// Comfort for pages that are whole without it: files dropped and sent with progress, a state that is watched, a link that
// is copied. Every word is in the page already, and whatever is written is written as text, never as mark-up.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });
  const API = "/api/v1/traces/";
  const SLOWEST_POLL_MS = 5000;

  // The state of a trace, asked for until it is analysed or has failed; null when it is gone.
  const settled = async (path, told) => {
    for (let wait = 500; ; wait = Math.min(SLOWEST_POLL_MS, wait * 1.5)) {
      let answer = null;
      try {
        answer = await fetch(path, { method: "HEAD", cache: "no-store", credentials: "same-origin" });
      } catch { /* the server is away: ask again */ }
      if (answer && (answer.status === 404 || answer.status === 401)) return null;
      const state = answer?.ok ? answer.headers.get("X-Traceanalyzer-State") : null;
      if (state === "analysed" || state === "failed") return state;
      if (state) told(state);
      await pause(wait);
    }
  };

  // A trace's page shows its report as soon as there is one.
  const watched = document.querySelector("[data-poll]");
  if (watched) settled(watched.dataset.poll, () => {}).then(() => location.reload());

  // Copying: where the clipboard is closed, the text is selected instead.
  for (const button of document.querySelectorAll("[data-copies]")) {
    const field = byId(button.dataset.copies);
    button.addEventListener("click", async () => {
      let done = true;
      try {
        await navigator.clipboard.writeText(field.value);
      } catch {
        field.select();
        done = document.execCommand("copy");
      }
      byId("copied").textContent = done ? button.dataset.done : button.dataset.failed;
    });
    button.hidden = false;
  }

  const form = byId("upload");
  if (!form) return;
  const chooser = byId("files");
  const drop = byId("drop");
  const progress = byId("progress");
  const list = progress.querySelector("ul");
  const words = progress.dataset;
  const say = (line) => { byId("said").textContent = line; };
  const able = Boolean(globalThis.crypto?.subtle);
  byId("plain-note").hidden = able;

  const printed = (bytes) => {
    const [unit, size] = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find(([, size]) => bytes >= size) ?? ["B", 1];
    return `${(bytes / size).toLocaleString("en", { maximumSignificantDigits: 3 })} ${unit}`;
  };

  const row = (file) => {
    const item = byId("row").content.firstElementChild.cloneNode(true);
    item.querySelector(".name").textContent = file.name;
    item.querySelector(".size").textContent = printed(file.size);
    const bar = item.querySelector("progress");
    bar.setAttribute("aria-label", file.name);
    list.append(item);
    const told = item.querySelector(".told");
    return {
      tell: (line) => { told.textContent = line; },
      at: (share) => { if (share === null) bar.removeAttribute("value"); else bar.value = share; },
      end: (line, path) => {
        told.textContent = line;
        told.classList.toggle("bad", !path);
        bar.remove();
        const link = item.querySelector("a");
        if (path) {
          link.href = path;
          link.append(document.createElement("bdi"));
          link.lastChild.textContent = ` ${file.name}`;
          link.lastChild.className = "hidden";
          item.querySelector(".next").hidden = false;
        }
        say(`${file.name}: ${line}`);
      },
    };
  };

  const hashed = async (file) => {
    const digest = await crypto.subtle.digest("SHA-256", await file.arrayBuffer());
    return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
  };

  // What the labels of the form say, as the query of the request.
  const labels = (file) => {
    const query = new URLSearchParams({ name: file.name });
    for (const [name, value] of new FormData(form)) {
      if (typeof value === "string" && value.trim()) query.set(name, value.trim());
    }
    return query;
  };

  const put = (url, file, at) => new Promise((resolve) => {
    const request = new XMLHttpRequest();
    request.open("PUT", url);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.addEventListener("progress", (event) => { if (event.lengthComputable) at(event.loaded / event.total); });
    request.addEventListener("load", () => resolve(request));
    request.addEventListener("error", () => resolve(null));
    request.addEventListener("abort", () => resolve(null));
    request.send(file);
  });

  const refusal = (answer) => {
    if (!answer) return words.lost;
    if (answer.status === 401) return words.login;
    try {
      const { title, detail } = JSON.parse(answer.responseText);
      const told = detail || title || words.lost;
      return `${told[0].toUpperCase()}${told.slice(1)}`;
    } catch {
      return words.lost;
    }
  };

  const send = async (file, line) => {
    if (file.size > Number(form.dataset.most)) return line.end(words.large, null);
    if (file.size > Number(form.dataset.hashMost)) return line.end(words.client, null);
    line.tell(words.hashing);
    line.at(null);
    let sha;
    try {
      sha = await hashed(file);
    } catch {
      return line.end(words.unreadable, null);
    }
    line.at(0);
    line.tell(words.sending);
    const answer = await put(`${API}${sha}?${labels(file)}`, file, line.at);
    if (!answer || answer.status >= 300) return line.end(refusal(answer), null);
    line.at(null);
    line.tell(answer.status === 200 ? words.known : words.waiting);
    return async () => {
      const state = await settled(API + sha, (now) => line.tell(now === "running" ? words.running : words.waiting));
      line.end(state ? words[state] : words.gone, state ? `/t/${sha}` : null);
    };
  };

  // One file travels at a time; what was sent is watched while the next one travels.
  let last = Promise.resolve();
  const sendAll = (files) => {
    progress.hidden = false;
    for (const file of files) {
      const line = row(file);
      line.tell(words.turn);
      last = last.then(() => send(file, line)).then((watch) => { watch?.(); });
    }
  };

  form.addEventListener("submit", (event) => {
    if (!able) return;
    event.preventDefault();
    sendAll(Array.from(chooser.files));
    chooser.value = "";
  });
  if (!able) return;
  for (const kind of ["dragenter", "dragover"]) {
    drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
  }
  for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    sendAll(Array.from(event.dataTransfer.files));
  });
  // A file dropped beside the area would replace the page.
  for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());
  document.querySelectorAll("[data-scripted]").forEach((part) => { part.hidden = false; });
})();
