// Draws dashboard.json with Grafana's components (@grafana/ui) and what a Prometheus answers. Grafana's server and its
// panel plugins are in no package; what they do between query and component (queries, names, overrides) is done here.
import {
  createTheme,
  dateTime,
  FieldColorModeId,
  FieldType,
  getDisplayProcessor,
  ThemeContext,
} from "@grafana/data";
import { BigValue, GlobalStyles, PanelChrome, TimeSeries } from "@grafana/ui";
import { createRoot } from "react-dom/client";

const COLUMN = 62;
const ROW = 36;
const GAP = 8;
const theme = createTheme({ colors: { mode: "dark" } });
const parameters = new URLSearchParams(location.search);
const from = Number(parameters.get("from"));
const to = Number(parameters.get("to"));
const step = Number(parameters.get("step"));
const prometheus = parameters.get("prometheus");
const timeRange = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: "", to: "" } };

const GRAPH = {
  drawStyle: "line",
  lineInterpolation: "linear",
  lineWidth: 1,
  fillOpacity: 0,
  showPoints: "never",
  spanNulls: false,
  axisPlacement: "auto",
  scaleDistribution: { type: "linear" },
  stacking: { mode: "none", group: "A" },
  hideFrom: { viz: false, legend: false, tooltip: false },
};

function filledIn(expression) {
  return expression
    .replaceAll("$job", ".*")
    .replaceAll("$instance", ".*")
    .replaceAll("$__rate_interval", `${4 * step}s`);
}

async function ask(target) {
  const query = new URLSearchParams({ query: filledIn(target.expr), start: from, end: to, step });
  const answer = await (await fetch(`${prometheus}/api/v1/query_range?${query}`)).json();
  if (answer.status !== "success") throw new Error(`${target.expr}: ${answer.error}`);
  return answer.data.result.map((series) => ({ target, ...series }));
}

function nameOf(target, labels) {
  if (target.legendFormat) return target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? "");
  const shown = Object.entries(labels).map(([name, value]) => `${name}="${value}"`);
  return shown.length ? `{${shown.join(", ")}}` : "Value";
}

function assigned(config, path, value) {
  const [first, second] = path.split(".");
  return second ? { ...config, [first]: { ...config[first], [second]: value } } : { ...config, [first]: value };
}

function configOf(panel, name) {
  const { defaults, overrides } = panel.fieldConfig;
  const plain = {
    color: { mode: FieldColorModeId.PaletteClassic },
    ...defaults,
    custom: { ...GRAPH, ...defaults.custom },
    displayName: name,
  };
  return overrides
    .filter(({ matcher }) => matcher.id === "byName" && matcher.options === name)
    .flatMap(({ properties }) => properties)
    .reduce((config, { id, value }) => assigned(config, id, value), plain);
}

function frameOf(panel, series, index) {
  const times = [];
  for (let at = from; at <= to; at += step) times.push(at * 1000);
  const found = new Map(series.values.map(([at, value]) => [Math.round(at * 1000), Number(value)]));
  const values = times.map((at) => found.get(Math.round(at)) ?? null).map((value) => (Number.isNaN(value) ? null : value));
  const field = {
    name: "Value",
    type: FieldType.number,
    labels: series.metric,
    values,
    config: configOf(panel, nameOf(series.target, series.metric)),
    state: { seriesIndex: index },
  };
  field.display = getDisplayProcessor({ field, theme });
  const time = { name: "Time", type: FieldType.time, values: times, config: {} };
  time.display = getDisplayProcessor({ field: time, theme });
  return { refId: series.target.refId, fields: [time, field], length: times.length };
}

// The small graph behind a number wants to know between what it runs, and makes its own lines.
function graphOf(field) {
  const numbers = field.values.filter((value) => value !== null);
  const min = Math.min(...numbers);
  const max = Math.max(...numbers);
  const { custom, ...config } = field.config;
  return { ...field, config, state: { ...field.state, range: { min, max, delta: max - min } } };
}

function Stat({ panel, frames, width, height }) {
  const fields = frames.map((frame) => frame.fields[1]);
  if (fields.length === 0) return <div>No data</div>;
  const isText = panel.options.textMode === "name";
  return fields.slice(0, 1).map((field) => {
    const last = [...field.values].reverse().find((value) => value !== null) ?? null;
    const value = isText ? { text: field.config.displayName, numeric: last } : field.display(last);
    const sparkline = panel.options.graphMode === "area" ? { y: graphOf(field), x: frames[0].fields[0], timeRange } : undefined;
    return (
      <BigValue key="0" value={value} sparkline={sparkline} theme={theme} width={width} height={height}
        colorMode={panel.options.colorMode} graphMode={panel.options.graphMode} textMode="value" />
    );
  });
}

function Graph({ panel, frames, width, height }) {
  if (frames.length === 0) return <div>No data</div>;
  const legend = { showLegend: true, calcs: [], ...panel.options.legend };
  return <TimeSeries frames={frames} timeRange={timeRange} timeZone="utc" width={width} height={height} legend={legend} theme={theme} />;
}

function Panel({ panel, frames }) {
  const { x, y, w, h } = panel.gridPos;
  const place = { position: "absolute", left: x * COLUMN + GAP, top: y * ROW + GAP };
  if (panel.type === "row") return <h3 style={{ ...place, margin: 0 }}>{panel.title}</h3>;
  const Drawn = panel.type === "stat" ? Stat : Graph;
  return (
    <div style={place} data-panel={panel.id} data-series={frames.length}>
      <PanelChrome title={panel.title} description={panel.description} width={w * COLUMN - GAP} height={h * ROW - GAP}>
        {(width, height) => <Drawn panel={panel} frames={frames} width={width} height={height} />}
      </PanelChrome>
    </div>
  );
}

async function main() {
  const dashboard = await (await fetch("dashboard.json")).json();
  const drawn = await Promise.all(
    dashboard.panels.map(async (panel) => {
      const found = (await Promise.all((panel.targets ?? []).map(ask))).flat();
      const frames = found.map((series, index) => frameOf(panel, series, index));
      return <Panel key={panel.id} panel={panel} frames={frames} />;
    }),
  );
  const rows = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  const element = document.getElementById("dashboard");
  element.style.height = `${rows * ROW + GAP}px`;
  createRoot(element).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      {drawn}
    </ThemeContext.Provider>,
  );
  setTimeout(() => document.body.setAttribute("data-drawn", "yes"), 1000);
}

main().catch((error) => document.body.setAttribute("data-failed", String(error)));
