import { useEffect, useState } from "preact/hooks";
import { html } from "../base/html.js";
import { Dialog } from "../base/controls.js";

const HERE = new URL(".", import.meta.url);

/** Parts of the page, with their licences. */
export function About({ onClose }) {
  const [licences, setLicences] = useState("Loading …");
  useEffect(() => {
    fetch(new URL("licences.txt", HERE))
      .then((response) => response.text())
      .then(setLicences, () => setLicences("The server is not responding."));
  }, []);
  return html`<${Dialog} title="About this page" wide onClose=${onClose}>
    <p>The page comes from your server and talks to nothing else. Conversations stay in this browser.</p>
    <h3>Included software</h3>
    <pre class="licences" tabindex="0">${licences}</pre>
  </${Dialog}>`;
}
