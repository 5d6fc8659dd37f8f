// The tokens of a call: one text node, coloured in pieces by the CSS Custom Highlight API.

const BUCKETS = 16;
const PIECES_AT_ONCE = 2000;
const PARTS = { logprob: "low", entropy: "high", advantage: "both", mismatch: "both", ratio: "both" };
const NAMES = { logprob: "Log-prob.", advantage: "Advantage", entropy: "Entropy", mismatch: "Mismatch", ratio: "Ratio" };
const MEANINGS = {
  logprob: "log-probability of the token when it was sampled", advantage: "advantage in the loss",
  entropy: "entropy of the distribution before the update, in nats",
  mismatch: "log-probability of the trainer before the update, minus that of sampling",
  ratio: "probability after the update, divided by that before it",
};
const STATES = ["context", "sampled, not trained", "trained"];

const box = document.getElementById("text");
const info = document.getElementById("token");
const legend = document.getElementById("legend");
const strip = document.getElementById("strip");
const status = document.getElementById("drawn");
const paints = window.Highlight && CSS.highlights;

let data = null;
let node = null;
let starts = null;      // start of each piece in the text, and the end of the last
let firstToken = null;  // index of the first token of each piece
let states = null;      // state of each piece
let by = box?.dataset.by ?? "";
let chosen = -1;
let moved = 0;          // the frame that is to show the token under the pointer
let drawing = 0;

// Half-transparent colours read on light and on dark ground.
function colour(kind, bucket) {
  if (kind !== "both") return `rgba(217, 119, 6, ${(0.04 + 0.8 * bucket / (BUCKETS - 1)).toFixed(3)})`;
  const half = BUCKETS / 2;
  const strength = bucket < half ? (half - bucket) / half : (bucket - half + 1) / half;
  const alpha = (0.06 + 0.7 * strength).toFixed(3);
  return bucket < half ? `rgba(220, 60, 45, ${alpha})` : `rgba(40, 130, 220, ${alpha})`;
}

function addStyles() {
  const rules = [
    "#text::highlight(agl-context) { color: GrayText; }",
    "#text::highlight(agl-sampled) { text-decoration: underline dotted; }",
    "#text::highlight(agl-chosen) { background-color: Highlight; color: HighlightText; }",
  ];
  for (const kind of ["one", "both"]) {
    for (let bucket = 0; bucket < BUCKETS; bucket++) {
      rules.push(`#text::highlight(agl-${kind}-${bucket}) { background-color: ${colour(kind, bucket)}; }`);
    }
  }
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(rules.join("\n"));
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
}

function index() {
  const { lengths, counts } = data;
  starts = new Uint32Array(lengths.length + 1);
  firstToken = new Uint32Array(lengths.length + 1);
  for (let at = 0; at < lengths.length; at++) {
    starts[at + 1] = starts[at] + lengths[at];
    firstToken[at + 1] = firstToken[at] + counts[at];
  }
  const ofToken = new Uint8Array(data.ids.length);
  let token = 0;
  for (const [state, length] of data.states) { ofToken.fill(state, token, token + length); token += length; }
  states = Uint8Array.from(lengths, (_, at) => ofToken[firstToken[at]]);
}

// The number of a piece: that of its last token with one, as a character is there when it is complete.
function valueOf(piece, name) {
  const values = data.measures[name];
  for (let token = firstToken[piece + 1] - 1; values && token >= firstToken[piece]; token--) {
    const value = token < data.first ? null : values[token - data.first];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}

// Returns the shown range, without the outermost hundredth, and the bucket of a number.
function scaleOf(name) {
  const kind = PARTS[name];
  const plain = (data.measures[name] ?? []).filter((value) => value !== null);
  const shown = name === "ratio" ? plain.map((value) => Math.log(Math.max(value, 1e-9))) : plain;
  const size = shown.map(Math.abs).sort((a, b) => a - b);
  const most = size.length ? size[Math.min(size.length - 1, Math.floor(size.length * 0.99))] || 1e-6 : 1e-6;
  const bucket = (value) => {
    const share = (name === "ratio" ? Math.log(Math.max(value, 1e-9)) : value) / most;
    if (kind !== "both") return Math.min(BUCKETS - 1, Math.max(0, Math.floor(Math.abs(share) * BUCKETS)));
    const half = BUCKETS / 2;
    if (Math.abs(share) * half < 0.05) return -1;
    const step = Math.min(half - 1, Math.floor(Math.abs(share) * half));
    return share < 0 ? half - 1 - step : half + step;
  };
  const ends = kind === "low" ? [0, -most] : kind === "high" ? [0, most]
    : name === "ratio" ? [Math.exp(-most), Math.exp(most)] : [-most, most];
  return { kind: kind === "both" ? "both" : "one", ends, bucket };
}

const number = (value) => (value === null || value === undefined ? "\u2013"
  : Math.abs(value) >= 1e4 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(1) : value.toFixed(3));

function showLegend(scale) {
  const colours = Array.from({ length: BUCKETS }, (_, bucket) => colour(scale.kind, bucket));
  const bar = document.createElement("i");
  bar.style.background = `linear-gradient(90deg, ${colours.join(", ")})`;
  legend.replaceChildren(number(scale.ends[0]), bar, number(scale.ends[1]));
  legend.title = MEANINGS[by];
}

function highlight(name) {
  if (!CSS.highlights.has(name)) CSS.highlights.set(name, new Highlight());
  return CSS.highlights.get(name);
}

function rangeOf(from, to) {
  return new StaticRange({ startContainer: node, startOffset: starts[from], endContainer: node, endOffset: starts[to] });
}

const nextTask = () => new Promise((resolve) => { setTimeout(resolve); });

// Colours all pieces, some in each task, so that the page answers in between.
async function draw() {
  const number_ = ++drawing;
  const scale = by ? scaleOf(by) : null;
  for (const name of [...(paints?.keys() ?? [])]) if (/^agl-(one|both)-/.test(name)) CSS.highlights.delete(name);
  if (scale) showLegend(scale);
  box.dataset.drawn = "0";
  delete box.dataset.done;
  const total = starts.length - 1;
  for (let from = 0; from < total; from += PIECES_AT_ONCE) {
    await nextTask();
    if (number_ !== drawing) return;
    const to = Math.min(from + PIECES_AT_ONCE, total);
    if (paints && scale) {
      for (let piece = from; piece < to; piece++) {
        const value = states[piece] ? valueOf(piece, by) : null;
        const bucket = value === null ? -1 : scale.bucket(value);
        if (bucket >= 0) highlight(`agl-${scale.kind}-${bucket}`).add(rangeOf(piece, piece + 1));
      }
    }
    box.dataset.drawn = String(firstToken[to]);
    status.textContent = to < total ? `${to} of ${total}` : paints ? "" : "This browser cannot colour text (CSS Custom Highlight API).";
    dispatchEvent(new CustomEvent("agl-tokens-drawn", { detail: { drawn: firstToken[to], total: data.ids.length } }));
  }
  drawStrip(scale);
  box.dataset.done = by;
}

function drawStates() {
  if (!paints) return;
  for (let from = 0, at = 1; at <= states.length; at++) {
    if (at < states.length && states[at] === states[from]) continue;
    if (states[from] < 2) highlight(states[from] ? "agl-sampled" : "agl-context").add(rangeOf(from, at));
    from = at;
  }
}

// All tokens in one line: each column has the colour of the token furthest from none.
function drawStrip(scale) {
  const width = strip.width = Math.max(1, strip.clientWidth);
  const context = strip.getContext("2d");
  const pieces = starts.length - 1;
  context.clearRect(0, 0, width, strip.height);
  for (let x = 0; x < width; x++) {
    const from = Math.floor(x * pieces / width);
    const to = Math.max(from + 1, Math.floor((x + 1) * pieces / width));
    let best = -1;
    let far = -1;
    for (let piece = from; piece < Math.min(to, pieces); piece++) {
      const value = scale && states[piece] ? valueOf(piece, by) : null;
      const bucket = value === null ? -1 : scale.bucket(value);
      const distance = bucket < 0 ? -1 : scale.kind === "both" ? Math.abs(bucket - BUCKETS / 2 + 0.5) : bucket;
      if (distance > far) { far = distance; best = bucket; }
    }
    context.fillStyle = best >= 0 ? colour(scale.kind, best) : states[from] ? "rgba(128,128,128,.25)" : "rgba(128,128,128,.1)";
    context.fillRect(x, 0, 1, strip.height);
  }
}

function pieceAt(offset) {
  let low = 0;
  let high = starts.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= offset) low = middle; else high = middle - 1;
  }
  return low;
}

function line(list, name, value) {
  const title = document.createElement("dt");
  const text = document.createElement("dd");
  title.textContent = name;
  text.textContent = value;
  list.append(title, text);
}

function show(piece, { keep = false, reveal = false } = {}) {
  if (piece < 0 || piece >= states.length) return;
  const list = document.createElement("dl");
  list.className = "facts";
  const from = firstToken[piece];
  const to = firstToken[piece + 1];
  line(list, to - from > 1 ? "Tokens" : "Token", to - from > 1 ? `${from} to ${to - 1}, one character` : String(from));
  line(list, to - from > 1 ? "Ids" : "Id", data.ids.slice(from, to).join(", "));
  line(list, "Text", JSON.stringify(data.text.slice(starts[piece], starts[piece + 1])));
  line(list, "Is", STATES[states[piece]]);
  for (const name of Object.keys(NAMES)) {
    if (!data.measures[name] || !states[piece]) continue;
    const values = data.measures[name].slice(from - data.first, to - data.first);
    line(list, NAMES[name], values.map(number).join(", "));
  }
  info.replaceChildren(list);
  info.dataset.token = String(from);
  if (!keep) return;
  cancelAnimationFrame(moved);
  moved = 0;
  chosen = piece;
  if (paints) { CSS.highlights.delete("agl-chosen"); highlight("agl-chosen").add(rangeOf(piece, piece + 1)); }
  remember("token", String(from));
  if (!reveal) return;
  const range = document.createRange();
  range.setStart(node, starts[piece]);
  range.setEnd(node, starts[piece + 1]);
  const place = range.getBoundingClientRect();
  const frame = box.getBoundingClientRect();
  if (place.top < frame.top || place.bottom > frame.bottom) box.scrollTop += place.top - frame.top - frame.height / 3;
}

function remember(name, value) {
  const here = new URL(location.href);
  if (here.searchParams.get(name) === value) return;
  here.searchParams.set(name, value);
  history.replaceState(null, "", here);
}

function pieceUnder(event) {
  const at = document.caretPositionFromPoint?.(event.clientX, event.clientY);
  const range = at ? null : document.caretRangeFromPoint?.(event.clientX, event.clientY);
  const [holder, offset] = at ? [at.offsetNode, at.offset] : [range?.startContainer, range?.startOffset];
  if (holder !== node) return -1;
  const piece = pieceAt(Math.min(offset, starts[starts.length - 1] - 1));
  return piece > 0 && offset === starts[piece] && !isInside(piece, event) ? piece - 1 : piece;
}

// A caret stands between letters: at a piece's end it is the next one's start.
function isInside(piece, event) {
  const range = document.createRange();
  range.setStart(node, starts[piece]);
  range.setEnd(node, starts[piece + 1]);
  return [...range.getClientRects()].some((each) => event.clientX >= each.left && event.clientX <= each.right
    && event.clientY >= each.top && event.clientY <= each.bottom);
}

function colourBy(name) {
  const link = document.querySelector(`#colours a[data-by="${name}"]`);
  if (!link) return;
  by = name;
  for (const each of document.querySelectorAll("#colours a")) each.removeAttribute("aria-current");
  link.setAttribute("aria-current", "true");
  remember("by", name);
  draw();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const links = document.querySelectorAll("#colours a");
  if (/^[1-9]$/.test(event.key) && !event.target.matches?.("input, select, textarea")) {
    colourBy(links[Number(event.key) - 1]?.dataset.by);
    return;
  }
  if (event.target !== box) return;
  const last = states.length - 1;
  const to = { ArrowRight: chosen + 1, ArrowLeft: chosen - 1, Home: 0, End: last }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  show(Math.min(Math.max(to, 0), last), { keep: true, reveal: true });
}

async function start() {
  const answer = await fetch(box.dataset.source);
  data = await answer.json();
  index();
  document.getElementById("unspelled").hidden = data.spelled;
  node = document.createTextNode(data.text);
  box.replaceChildren(node);
  if (paints) addStyles();
  drawStates();
  const wanted = Number(new URL(location.href).searchParams.get("token") ?? NaN);
  if (Number.isInteger(wanted) && wanted >= 0 && wanted < data.ids.length) {
    show(Math.max(0, firstToken.findIndex((first) => first > wanted) - 1), { keep: true, reveal: true });
  }
  box.addEventListener("pointermove", (event) => {
    moved ||= requestAnimationFrame(() => { moved = 0; const piece = pieceUnder(event); if (piece >= 0) show(piece); });
  });
  box.addEventListener("pointerleave", () => { if (chosen >= 0) show(chosen); });
  box.addEventListener("click", (event) => { const piece = pieceUnder(event); if (piece >= 0) show(piece, { keep: true }); });
  strip.addEventListener("click", (event) => {
    const place = strip.getBoundingClientRect();
    show(Math.floor((event.clientX - place.left) / place.width * states.length), { keep: true, reveal: true });
  });
  document.addEventListener("keydown", onKey);
  for (const link of document.querySelectorAll("#colours a[data-by]")) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
      event.preventDefault();
      colourBy(link.dataset.by);
    });
  }
  addEventListener("resize", () => { if (box.dataset.done !== undefined) drawStrip(by ? scaleOf(by) : null); });
  await draw();
}

if (box) start().catch((error) => { status.textContent = `The tokens could not be read: ${error}`; });
