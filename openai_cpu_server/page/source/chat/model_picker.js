// Choice of the model: each with its state, size and purpose. Choosing a sleeping model loads it.
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { html } from "../base/html.js";
import { Icon } from "../base/icons.js";
import { bytes, count } from "../base/numbers.js";
import { ApiError, Unreachable, call } from "../api/client.js";
import { health, loadModels, models, reachable } from "../api/server.js";
import { announce } from "../shell/announce.js";
import { changeSettings, current } from "./conversations.js";

const STATES = {
  ready: "ready",
  loading: "loading",
  asleep: "asleep: loads when it is chosen or used",
  failed: "failed",
  restarting: "restarting",
  draining: "stopping",
  stopped: "stopped",
};

export function ModelPicker() {
  const [open, setOpen] = useState(false);
  const [problem, setProblem] = useState(null);
  const box = useRef(null);
  useClosing(box, open, () => setOpen(false));
  const [files, setFiles] = useState([]);
  useEffect(() => {
    if (!open) return;
    loadModels();
    filesOfModels().then(setFiles);
  }, [open]);
  const cards = chattable(models.value);
  const chosen = chosenModel();
  const choose = async (card) => {
    setProblem(null);
    changeSettings({ model: card.id });
    if (card.state === "asleep" || card.state === "failed") setProblem(await loaded(card));
  };
  return html`<div class="picker" ref=${box}>
    <button type="button" class="picker-button" aria-haspopup="dialog" aria-expanded=${open} onClick=${() => setOpen(!open)} title="Model">
      <${Dot} state=${reachable.value ? chosen?.state : "unknown"} /><span class="picker-name">${chosen?.id ?? "No model"}</span><span class="hidden-text">, ${STATES[chosen?.state] ?? "unknown"}</span><${Icon} name="down" size=${14} />
    </button>
    ${open && html`<div class="picker-list" role="dialog" aria-label="Models">
      <${Cards} cards=${cards} files=${files} chosen=${chosen} choose=${choose} />
      ${problem && html`<p class="composer-problem" role="alert">${problem}</p>`}
    </div>`}
  </div>`;
}

/** Card of the open conversation's model, or undefined while unknown. */
export function chosenModel() {
  const cards = chattable(models.value);
  return cards.find((one) => one.id === current.value.settings.model) ?? byDefault(cards);
}

/** Input that the model takes beside text: {picture, sound}. */
export function takenBy(card) {
  const modalities = card?.architecture?.input_modalities ?? [];
  return { picture: modalities.includes("image"), sound: modalities.includes("audio") };
}

function chattable(cards) {
  return (cards ?? []).filter((one) => one.kind === "generates" || one.kind === "routes");
}

function byDefault(cards) {
  return cards.find((one) => one.id === health.value?.model) ?? cards[0];
}

/** Sizes of models that have not been used yet. Only Ollama's list has them. */
async function filesOfModels() {
  if (models.peek()?.every((card) => card.meta || card.routes)) return [];
  try {
    return (await call("GET", "/api/tags")).models;
  } catch (error) {
    if (error instanceof ApiError || error instanceof Unreachable) return [];
    throw error;
  }
}

/** Returns null while it loads. Keys without the scope `admin` cannot load a model, but their first message does. */
async function loaded(card) {
  announce(`${card.id} is loading`);
  try {
    await call("POST", `/v1/models/${card.id.split("/").map(encodeURIComponent).join("/")}/load?wait=false`);
    await loadModels();
    return null;
  } catch (error) {
    if (error instanceof ApiError) return error.status === 403 ? null : error.message;
    if (error instanceof Unreachable) return error.message;
    throw error;
  }
}

function Cards({ cards, files, chosen, choose }) {
  const name = useId();
  const list = useRef(null);
  useEffect(() => list.current.querySelector("input:checked")?.focus(), []);
  return html`<div role="radiogroup" aria-label="Model" ref=${list}>
    ${cards.length === 0 && html`<p class="soft">This server has no model that writes text.</p>`}
    ${cards.map(
      (card) => html`<label key=${card.id} class=${card.id === chosen?.id ? "picker-card chosen" : "picker-card"}>
        <input type="radio" name=${name} checked=${card.id === chosen?.id} onChange=${() => choose(card)} />
        <span class="picker-head"><${Dot} state=${card.state} /><strong>${card.id}</strong>${card.parent && html`<span class="tag">adapter of ${card.parent}</span>`}${card.kind === "routes" && html`<span class="tag">router</span>`}</span>
        <span class="soft">${STATES[card.state] ?? card.state}${card.state === "loading" && health.value ? ` (${Math.round(100 * health.value.loaded)} %)` : ""}${card.reason ? `: ${card.reason}` : ""}</span>
        ${[facts(card, files.find((file) => file.name === card.id)), purpose(card)].filter(Boolean).map((line) => html`<span class="soft">${line}</span>`)}
      </label>`,
    )}
  </div>`;
}

/** "135 M parameters · q4_k_m · 105 MB file · 8,192 tokens of context" */
function facts({ meta, memory_bytes: memory, routes }, file) {
  if (routes) return `sends requests on to ${[...new Set(Object.values(routes))].join(", ")}`;
  if (!meta) return file?.size ? [file.details.quantization_level.toLowerCase(), `${bytes(file.size)} file`].filter(Boolean).join(" · ") : "";
  const size = meta.parameters >= 1e9 ? `${(meta.parameters / 1e9).toFixed(1)} B` : `${Math.round(meta.parameters / 1e6)} M`;
  const texts = [
    `${size} parameters`,
    meta.quantisation,
    meta.size_bytes && `${bytes(meta.size_bytes)} file`,
    `${count(meta.context_length)} tokens of context`,
    memory && `${bytes(memory)} in memory`,
  ];
  return texts.filter(Boolean).join(" · ");
}

/** Purposes by number of parameters, a rule of thumb. Each is for models with fewer parameters than its limit. */
const PURPOSES = [
  [4e8, "quick tests and simple rewriting; expect mistakes"],
  [2e9, "rewriting, classifying and short summaries"],
  [6e9, "everyday chat, summaries and extracting data"],
  [2e10, "chat, code and longer reasoning, more slowly"],
  [Infinity, "demanding questions, if you can wait"],
];

/** Purpose of a model, or "" if its size is unknown. */
function purpose(card) {
  if (!card.meta) return "";
  const [, text] = PURPOSES.find(([limit]) => card.meta.parameters < limit);
  const takes = takenBy(card);
  const media = [takes.picture && "pictures", takes.sound && "sounds"].filter(Boolean);
  return `Good for ${text}.${media.length ? ` Takes ${media.join(" and ")}.` : ""}`;
}

/** Colour of the state. The words beside it say the same. */
function Dot({ state }) {
  return html`<span class=${`dot ${state ?? "unknown"}`} aria-hidden="true"></span>`;
}

function useClosing(box, open, close) {
  useEffect(() => {
    if (!open) return undefined;
    const outside = (event) => box.current?.contains(event.target) || close();
    const escape = (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      close();
      box.current?.querySelector("button").focus();
    };
    addEventListener("pointerdown", outside);
    addEventListener("keydown", escape, true);
    return () => {
      removeEventListener("pointerdown", outside);
      removeEventListener("keydown", escape, true);
    };
  }, [open]);
}
