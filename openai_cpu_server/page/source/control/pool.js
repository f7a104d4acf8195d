// Map of the KV pool: free cells, cells of each request, and cells that several requests share.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { html } from "../base/html.js";
import { count, percent } from "../base/numbers.js";
import { colour, useCanvas } from "./canvas.js";
import { caches } from "./stream.js";
import { shortId } from "./words.js";

const KINDS = [
  { key: "free", label: "Free" },
  { key: "interactive", label: "One interactive request" },
  { key: "batch", label: "One batch request" },
  { key: "shared", label: "Shared" },
];

export function Pools() {
  const poolCaches = caches.value?.models ?? [];
  if (!poolCaches.length) {
    return html`<section class="control-card"><h2>KV blocks</h2><p class="soft">${caches.value ? "No model is loaded." : "Waiting for data."}</p></section>`;
  }
  return poolCaches.map((one) => html`<${PoolCard} key=${one.model} cache=${one} alone=${poolCaches.length === 1} />`);
}

function PoolCard({ cache, alone }) {
  const { pool, prompts } = cache;
  const owners = useMemo(() => ownersOf(pool), [pool]);
  const free = pool.blocks - pool.used_blocks;
  return html`<section class="control-card" aria-label=${`KV blocks of ${cache.model}`}>
    <header class="control-head"><h2>KV blocks${alone ? "" : ` · ${cache.model}`}</h2>
      <span class="soft">${percent(pool.used_blocks / Math.max(1, pool.blocks))} in use</span></header>
    <ul class="control-legend" aria-label="Legend">
      ${KINDS.map((kind) => html`<li><span class=${`control-swatch pool-${kind.key}`}></span>${kind.label}</li>`)}
    </ul>
    <${Map} pool=${pool} owners=${owners} />
    <p>${count(free)} of ${count(pool.blocks)} blocks are free, ${count(pool.used_blocks - pool.shared_blocks)} belong to one request,
      ${" "}${count(pool.shared_blocks)} are shared. A block is ${pool.block_tokens} tokens${pool.tile_blocks > 1 ? `, a square ${pool.tile_blocks} blocks` : ""}.</p>
    <${Holders} pool=${pool} owners=${owners} />
    ${prompts && html`<${PrefixCache} prompts=${prompts} />`}
  </section>`;
}

/** Numbers of the holdings in each tile. */
function ownersOf(pool) {
  const owners = Array.from({ length: pool.tiles }, () => []);
  pool.holdings.forEach((holding, index) => {
    for (const [first, length] of holding.runs) {
      for (let tile = first; tile < Math.min(pool.tiles, first + length); tile++) owners[tile].push(index);
    }
  });
  return owners;
}

function Map({ pool, owners }) {
  const [pointed, setPointed] = useState(null);
  const grid = useRef(null);
  const [canvas, ask] = useCanvas((context, width, height) => {
    grid.current = gridOf(pool.tiles, width, height);
    drawPool(context, grid.current, owners, pool.holdings, pointed);
  });
  useEffect(ask, [pool, pointed]);
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const place = grid.current && tileAt(grid.current, event.clientX - box.left, event.clientY - box.top);
    setPointed(place !== null && place < pool.tiles ? pool.tiles - 1 - place : null);
  };
  return html`<div class="control-pool-box" onPointerMove=${move} onPointerLeave=${() => setPointed(null)}>
    <canvas ref=${canvas} class="control-pool" role="img" aria-label="Map of the KV pool; the text below describes it"></canvas>
    <p class="control-pool-note soft" aria-hidden="true">${pointed === null ? "Point at a square to see which request holds it." : tileText(pointed, owners[pointed] ?? [], pool)}</p>
  </div>`;
}

function tileText(tile, holders, pool) {
  const names = holders.map((index) => nameOfHolding(pool.holdings[index]));
  if (!names.length) return `Square ${tile + 1}: free`;
  const shared = names.length > 1 ? `shared by ${names.length}: ` : "";
  return `Square ${tile + 1}: ${shared}${names.slice(0, 4).join(", ")}${names.length > 4 ? ` and ${names.length - 4} more` : ""}`;
}

function nameOfHolding(holding) {
  return holding.id ? shortId(holding.id) : `others (${holding.priority})`;
}

/** The largest squares that fit. */
function gridOf(tiles, width, height) {
  let size = Math.max(4, Math.floor(Math.sqrt((width * height) / Math.max(1, tiles))));
  while (size > 4 && Math.ceil(tiles / Math.floor(width / size)) * size > height) size -= 1;
  return { size: Math.min(size, 18), columns: Math.max(1, Math.floor(width / Math.min(size, 18))) };
}

function tileAt({ size, columns }, x, y) {
  const column = Math.floor(x / size);
  return column < columns ? Math.floor(y / size) * columns + column : null;
}

function drawPool(context, { size, columns }, owners, holdings, pointed) {
  const holders = pointed === null ? [] : (owners[pointed] ?? []);
  const side = size - (size > 6 ? 2 : 1);
  owners.forEach((held, tile) => {
    const place = owners.length - 1 - tile; // the ledger takes the last blocks first
    const x = (place % columns) * size;
    const y = Math.floor(place / columns) * size;
    square(context, x, y, side, held, holdings);
    if (holders.length && held.some((index) => holders.includes(index))) {
      context.strokeStyle = colour("--text");
      context.lineWidth = 1.5;
      context.strokeRect(x + 0.25, y + 0.25, side - 0.5, side - 0.5);
    }
  });
}

/** Colour alone is not enough: free squares are hollow, batch work has a bar below, shared ones have a diagonal. */
function square(context, x, y, side, held, holdings) {
  if (!held.length) {
    context.strokeStyle = colour("--line");
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    return;
  }
  const priority = holdings[held[0]].priority;
  context.fillStyle = colour(held.length > 1 ? "--shared" : priority === "batch" ? "--step-batch" : "--step-interactive");
  context.fillRect(x, y, side, side);
  if (side < 5) return;
  context.fillStyle = context.strokeStyle = colour("--surface");
  if (held.length > 1) {
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x + 1, y + side - 1);
    context.lineTo(x + side - 1, y + 1);
    context.stroke();
  } else if (priority === "batch") {
    context.fillRect(x + 1, y + side - 3, side - 2, 1.5);
  }
}

function Holders({ pool, owners }) {
  const rows = pool.holdings.map((holding, index) => {
    const tiles = holding.runs.reduce((sum, [, length]) => sum + length, 0);
    const shared = owners.filter((held) => held.length > 1 && held.includes(index)).length;
    return { holding, tiles, shared };
  });
  return html`<details class="control-words"><summary>${rows.length ? `${count(rows.length)} ${rows.length === 1 ? "holder" : "holders"}` : "No block is held"}</summary>
    <div class="control-scroll" tabindex="0" role="region" aria-label="Holders of KV blocks"><table>
      <thead><tr><th>Holder</th><th>Priority</th><th class="number">Blocks</th><th class="number">Shared</th></tr></thead>
      <tbody>${rows.map(({ holding, tiles, shared }) => html`<tr><td>${nameOfHolding(holding)}</td><td>${holding.priority}</td>
        <td class="number">${count(tiles * pool.tile_blocks)}</td><td class="number">${count(shared * pool.tile_blocks)}</td></tr>`)}</tbody>
    </table></div></details>`;
}

function PrefixCache({ prompts }) {
  const used = prompts.capacity_blocks ? prompts.blocks / prompts.capacity_blocks : 0;
  const tokens = prompts.blocks * prompts.block_tokens;
  return html`<div class="control-cache">
    <h3>Prefix cache</h3>
    ${prompts.capacity_blocks
      ? html`<div class="control-meter" role="img" aria-label=${`${percent(used)} of the prefix cache is in use`}><span style=${{ width: `${100 * used}%` }}></span></div>
        <p>${count(tokens)} tokens are stored in ${count(prompts.blocks)} of ${count(prompts.capacity_blocks)} blocks${prompts.pinned_blocks ? `, ${count(prompts.pinned_blocks)} of them pinned` : ""}; ${count(prompts.evictions)} were evicted.</p>`
      : html`<p class="soft">Off.</p>`}
  </div>`;
}
