// Charts by the script of the plotly distribution, which is loaded after the page is painted.

const colours = ["--s1", "--s2", "--s3", "--s4", "--s5", "--s6", "--s7", "--s8"];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function load() {
  if (window.Plotly) return Promise.resolve();
  return new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = "/static/plotly.js";
    script.onload = done;
    script.onerror = () => failed(new Error("The script of plotly could not be loaded"));
    document.head.append(script);
  });
}

export function traces(series) {
  const found = [];
  series.forEach((each, at) => {
    const colour = css(colours[at % colours.length]);
    const base = { name: each.name, x: each.x, y: each.y, text: each.text, customdata: each.versions, hovertemplate: "%{y:.4~g}" + (each.text ? "%{text}" : "") + (each.name ? "<extra>%{fullData.name}</extra>" : "<extra></extra>") };
    if (each.kind === "bar") {
      found.push({ ...base, type: "bar", marker: { color: colour } });
    } else {
      if (each.kind === "band") {
        const edge = { x: each.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
        found.push({ ...edge, y: each.high });
        found.push({ ...edge, y: each.low, fill: "tonexty", fillcolor: colour + "26" });
      }
      const few = each.x.length <= 30;
      found.push({ ...base, type: "scatter", mode: few ? "lines+markers" : "lines", line: { color: colour, width: 1.75 }, marker: { size: 4.5, color: colour }, connectgaps: false });
    }
  });
  return found;
}

// A constant, or a change in the seventh digit, is drawn as a flat line.
function heights(series) {
  if (series.some((each) => each.kind === "bar")) return { rangemode: "tozero" };
  const values = series.flatMap((each) => [...each.y, ...(each.low || []), ...(each.high || [])]).filter((y) => y !== null);
  const low = Math.min(...values), high = Math.max(...values);
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (!size) return { range: [0, 1] };
  return high - low < size * 1e-3 ? { range: [low - size * 0.01, high + size * 0.01] } : { autorange: true };
}

export function layout(series, range) {
  const line = css("--line");
  const axis = { gridcolor: line, linecolor: line, zeroline: false, tickfont: { size: 11, color: css("--muted") }, automargin: true };
  return {
    margin: { l: 8, r: 8, t: 6, b: 8 }, barmode: "stack", bargap: 0.15, height: 220,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--text") },
    xaxis: { ...axis, showgrid: false, tickformat: "d", nticks: 8, ...(range ? { range } : { autorange: true }) },
    yaxis: { ...axis, nticks: 5, fixedrange: true, tickformat: ".4~g", ...heights(series) },
    showlegend: series.filter((each) => each.name).length > 1,
    legend: { orientation: "h", y: -0.18, font: { size: 11, color: css("--muted") } },
    hovermode: "x unified", dragmode: "zoom",
    hoverlabel: { bgcolor: css("--surface"), bordercolor: line, font: { color: css("--text"), size: 12 } },
  };
}

const config = { displayModeBar: false, responsive: true, showTips: false };

export function draw(place, series, range) {
  return window.Plotly.react(place, traces(series), layout(series, range), config);
}

const box = document.getElementById("charts");
let data = null;
let moving = false;

function chosen() {
  const { first, last } = box.dataset;
  return first || last ? [first ? +first - 0.5 : 0.5, last ? +last + 0.5 : Math.max(...data.x, 1) + 0.5] : null;
}

function listen(place) {
  place.on("plotly_click", (event) => {
    const step = Math.round(event.points[0].x);
    const mode = place.dataset.chart === "score" ? "val" : "train";
    const version = event.points[0].customdata;
    location.href = `${box.dataset.rollouts}?mode=${mode}&first=${step}&last=${step}${version ? `&version=${version}` : ""}`;
  });
  place.on("plotly_relayout", (change) => {
    if (moving) return;
    if (change["xaxis.autorange"]) choose("", "");
    else if ("xaxis.range[0]" in change) {
      choose(Math.max(Math.ceil(change["xaxis.range[0]"]), 0), Math.max(Math.floor(change["xaxis.range[1]"]), 0));
    }
  });
}

async function choose(first, last) {
  if (first !== "" && last < first) last = first;
  box.dataset.first = first;
  box.dataset.last = last;
  const url = new URL(location.href);
  if (first === "") url.searchParams.delete("steps");
  else url.searchParams.set("steps", `${first}-${last}`);
  history.replaceState(null, "", url);
  moving = true;
  await drawAll();
  moving = false;
  const { renew } = await import("./app.js");
  renew();
}

async function drawAll() {
  const range = chosen();
  for (const place of box.querySelectorAll("[data-chart]")) {
    const series = (data.charts[place.dataset.chart] || []).filter((each) => each.y.some((y) => y !== null));
    const fresh = !place.classList.contains("js-plotly-plot");
    if (!series.length) { place.textContent = ""; continue; }
    await draw(place, series, range);
    if (fresh && place.on) listen(place);
  }
}

async function update() {
  const answer = await fetch(box.dataset.source);
  if (!answer.ok) return;
  data = await answer.json();
  await drawAll();
  box.dataset.drawn = String(+(box.dataset.drawn || 0) + 1);
}

function later(call) {
  requestAnimationFrame(() => setTimeout(call, 0));
}

if (box) {
  later(async () => {
    try {
      await load();
      await update();
    } catch (error) {
      for (const place of box.querySelectorAll(".plot:empty")) place.textContent = error.message;
    }
  });
  let waiting = 0;
  addEventListener("agl-change", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (window.Plotly) update(); }, 500);
  });
  // Charts that have their first numbers.
  addEventListener("agl-renewed", (event) => {
    for (const card of event.detail.querySelectorAll("#charts .card")) {
      const { chart } = card.querySelector("[data-chart]").dataset;
      if (![...box.querySelectorAll("[data-chart]")].some((each) => each.dataset.chart === chart)) {
        box.append(document.adoptNode(card));
        if (data) drawAll();
      }
    }
  });
  addEventListener("agl-theme", () => { if (data) drawAll(); });
}
