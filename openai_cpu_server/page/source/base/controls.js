// Controls of both rooms, so that they look and behave alike.
import { useEffect, useId, useRef } from "preact/hooks";
import { html } from "./html.js";
import { Icon } from "./icons.js";

/** A button with a picture only. `label` is for screen readers and tooltips. */
export function IconButton({ icon, label, onClick, pressed, expanded, kind = "", disabled, shortcut, ...rest }) {
  return html`<button
    type="button"
    class=${`icon-button ${kind}`}
    aria-label=${label}
    title=${shortcut ? `${label} (${shortcut})` : label}
    aria-pressed=${pressed}
    aria-expanded=${expanded}
    disabled=${disabled}
    onClick=${onClick}
    ...${rest}
  ><${Icon} name=${icon} /></button>`;
}

export function Button({ icon, kind = "", children, ...rest }) {
  return html`<button type="button" class=${`button ${kind}`} ...${rest}>
    ${icon && html`<${Icon} name=${icon} />`}<span>${children}</span>
  </button>`;
}

/** The browser's own modal dialog: it holds the focus, and Escape closes it. */
export function Dialog({ title, onClose, children, wide }) {
  const dialog = useRef(null);
  const titleId = useId();
  useEffect(() => {
    const before = document.activeElement;
    const shown = dialog.current;
    shown.showModal();
    // Escape closes it before it is removed here. The browser has restored the focus, and keys may have moved it since.
    return () => shown.open && before?.focus?.();
  }, []);
  const onBackdrop = (event) => event.target === dialog.current && onClose();
  return html`<dialog
    ref=${dialog}
    class=${wide ? "dialog wide" : "dialog"}
    aria-labelledby=${titleId}
    onClose=${onClose}
    onClick=${onBackdrop}
  >
    <div class="dialog-inside">
      <header class="dialog-head">
        <h2 id=${titleId}>${title}</h2>
        <${IconButton} icon="close" label="Close" onClick=${onClose} />
      </header>
      ${children}
    </div>
  </dialog>`;
}

/** One choice of a few, as buttons in a row. `options`: [{value, label, icon}]. */
export function Choice({ label, value, options, onChange, compact }) {
  const name = useId();
  return html`<fieldset class=${compact ? "choice compact" : "choice"}>
    <legend class="hidden-text">${label}</legend>
    ${options.map(
      (option) => html`<label class=${option.value === value ? "chosen" : ""} title=${option.help ?? option.label}>
        <input type="radio" name=${name} checked=${option.value === value} onChange=${() => onChange(option.value)} />
        ${option.icon && html`<${Icon} name=${option.icon} />`}
        <span class=${option.icon ? "hidden-text" : ""}>${option.label}</span>
      </label>`,
    )}
  </fieldset>`;
}

/** A field with its label above, and its meaning or its error below. */
export function Field({ label, help, error, children, aside }) {
  const id = useId();
  const helpId = `${id}-help`;
  const described = help || error ? helpId : undefined;
  return html`<div class=${error ? "field wrong" : "field"}>
    <div class="field-head"><label for=${id}>${label}</label>${aside}</div>
    ${children({ id, "aria-describedby": described, "aria-invalid": error ? "true" : undefined })}
    ${(help || error) && html`<p class="field-help" id=${helpId} role=${error ? "alert" : undefined}>${error || help}</p>`}
  </div>`;
}
