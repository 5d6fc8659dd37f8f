// The tree of a rollout: details of a span on demand, pieces of the tree when they come into view.

const box = document.getElementById("detail");
const tree = document.getElementById("tree");
let asked = 0;
let waiting = 0;

async function show(link) {
  clearTimeout(waiting);
  const number = ++asked;
  const { row } = link.dataset;
  for (const each of tree.querySelectorAll(".marked")) if (each !== link) each.classList.remove("marked");
  link.classList.add("marked");
  const url = new URL(box.dataset.detail, location.href);
  url.searchParams.set("span", row);
  const fresh = await fetched(url);
  if (number !== asked || !fresh) return;
  const place = document.getElementById("detail");
  place.replaceChildren(...fresh.body.childNodes);
  place.scrollTop = 0;
  const here = new URL(location.href);
  here.searchParams.set("span", row);
  here.searchParams.delete("at");
  history.replaceState(null, "", here);
}

async function fetched(url) {
  try {
    const answer = await fetch(url);
    return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
  } catch { return null; /* the server is away */ }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("#tree a[data-row]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  show(link);
});
document.addEventListener("agl-marked", (event) => {
  clearTimeout(waiting);
  waiting = setTimeout(() => show(event.target), 80);
});

// Pieces in view are loaded, the newest first, and no more than two at once: the scrollbar may be dragged
// over hundreds of them. Of those out of view, the last ones are kept.
const KEPT = 12;
const wanted = new Set();
const loaded = new Map();
let loading = 0;
const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) wanted[isIntersecting ? "add" : "delete"](target);
  load();
}, { root: tree, rootMargin: "600px" });

function load() {
  while (loading < 2 && wanted.size) {
    loading += 1;
    fill([...wanted].at(-1)).finally(() => { loading -= 1; load(); });
  }
}

async function fill(piece) {
  seen.unobserve(piece);
  wanted.delete(piece);
  const fresh = await fetched(piece.dataset.next);
  const found = fresh?.getElementById(piece.id);
  if (found && piece.isConnected) {
    piece.replaceWith(document.adoptNode(found));
    loaded.set(piece.id, piece);
    forget();
  } else if (piece.isConnected) setTimeout(() => seen.observe(piece), 2000);
  return document.getElementById(piece.id);
}

function forget() {
  const view = tree.getBoundingClientRect();
  for (const [id, piece] of loaded) {
    if (loaded.size <= KEPT) return;
    const own = document.getElementById(id);
    if (!apart(own, view) || own.querySelector(".marked")) continue;
    loaded.delete(id);
    own.replaceWith(piece);
    seen.observe(piece);
  }
}

function apart(piece, view) {
  const { top, bottom } = piece.getBoundingClientRect();
  return bottom < view.top - 600 || top > view.bottom + 600;
}

function watch() {
  for (const piece of tree.querySelectorAll("[data-next]")) seen.observe(piece);
}

// The arrows go on into a piece that is not loaded; Home and End go to the first and the last span.
let moving = false;

async function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
  const pieces = tree.querySelectorAll(".chunk");
  const far = event.target.closest?.("#detail") ? null : { Home: pieces[0], End: pieces[pieces.length - 1] }[event.key];
  const near = far ?? beyond(event.key);
  if (!near) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  if (moving) return;
  moving = true;
  const piece = near.dataset.next ? await fill(near) : near;
  moving = false;
  const rows = piece?.querySelectorAll("[data-row]") ?? [];
  const row = rows[event.key === "End" || event.key === "ArrowUp" ? rows.length - 1 : 0];
  if (!row) return;
  for (const each of tree.querySelectorAll(".marked")) each.classList.remove("marked");
  row.classList.add("marked");
  row.scrollIntoView({ block: "nearest" });
  row.dispatchEvent(new Event("agl-marked", { bubbles: true }));
}

function beyond(key) {
  const way = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[key];
  const row = tree.querySelector(".marked");
  const piece = way && row && !row[way] ? row.parentElement[way] : null;
  return piece?.dataset.next ? piece : null;
}

document.addEventListener("keydown", onKey, { capture: true });

// A tree that still grows: what is in view is renewed, other pieces when they come into view.
addEventListener("agl-renewed", ({ detail }) => {
  const other = detail.getElementById("tree");
  if (!other || !("follows" in tree.dataset)) return;
  if (!("follows" in other.dataset)) delete tree.dataset.follows;
  if (!tree.querySelector(".chunk")) tree.replaceChildren();
  const view = tree.getBoundingClientRect();
  for (const fresh of [...other.querySelectorAll(".chunk")]) {
    const own = document.getElementById(fresh.id);
    if (own?.outerHTML === fresh.outerHTML) continue;
    if (!own) tree.append(document.adoptNode(fresh));
    else if (!fresh.dataset.next || own.dataset.next) replace(own, fresh);
    else renewed(own, fresh, view);
  }
  watch();
});

async function renewed(own, fresh, view) {
  if (apart(own, view) && !own.querySelector(".marked")) return replace(own, fresh);
  const found = (await fetched(fresh.dataset.next))?.getElementById(own.id);
  if (found && own.isConnected) replace(own, found);
}

function replace(own, fresh) {
  const row = own.querySelector(".marked")?.dataset.row;
  if (row) fresh.querySelector(`[data-row="${CSS.escape(row)}"]`)?.classList.add("marked");
  if (fresh.dataset.next) loaded.delete(own.id);
  own.replaceWith(document.adoptNode(fresh));
}

tree.querySelector(".marked")?.scrollIntoView({ block: "center" });
watch();
