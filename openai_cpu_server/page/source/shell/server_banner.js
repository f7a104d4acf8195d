// Banner that explains what is wrong with the server.
import { html } from "../base/html.js";
import { Icon } from "../base/icons.js";
import { Button } from "../base/controls.js";
import { percent } from "../base/numbers.js";
import { access, health, serverState } from "../api/server.js";

export function ServerBanner({ onKey }) {
  const banner = bannerOf(onKey);
  return html`<div class="banners" role="status" aria-live="polite">
    ${banner && html`<div class=${`banner ${banner.kind}`}>
      <${Icon} name=${banner.kind === "calm" ? "info" : "warning"} />
      <div class="banner-text"><strong>${banner.title}</strong> ${banner.text}</div>
      ${banner.share !== undefined && html`<progress max="1" value=${banner.share} aria-label="Loaded"></progress>`}
      ${banner.action}
    </div>`}
  </div>`;
}

function bannerOf(onKey) {
  if (serverState.value === "gone") {
    return { kind: "bad", title: "The server is not responding.", text: "The page retries every second and continues by itself. Your draft is kept." };
  }
  if (access.value === "needed" || access.value === "wrong") {
    const title = access.value === "needed" ? "This server requires an API key." : "The server does not recognize this key.";
    return { kind: "warn", title, text: "", action: html`<${Button} icon="key" onClick=${onKey}>Enter a key</${Button}>` };
  }
  const reason = health.value?.reason ?? "";
  switch (serverState.value) {
    case "loading":
      return { kind: "calm", title: "The model is loading.", text: percent(health.value.loaded), share: health.value.loaded };
    case "restarting":
      return { kind: "warn", title: "The engine is restarting.", text: `Answers pause and then continue. ${reason}` };
    case "degraded":
      return { kind: "warn", title: "A model has failed.", text: reason };
    case "failed":
      return { kind: "bad", title: "The model has failed.", text: reason };
    case "draining":
      return { kind: "warn", title: "The server is stopping.", text: "It finishes running requests and accepts no new ones." };
  }
  return null;
}
