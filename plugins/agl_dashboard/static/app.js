// What every page has: theme, times, links, following a run, keys in lists.

const dark = matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : dark.matches;
}

function chooseTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("agl-theme", theme); } catch { /* storage is off */ }
  dispatchEvent(new Event("agl-theme"));
}

const near = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const far = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

export function localTimes(root = document) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const today = at.toDateString() === new Date().toDateString();
    each.textContent = (today ? near : far).format(at);
    each.title = at.toLocaleString();
  }
}

// Replaces the parts of the page that follow the run by those of a fresh copy.
let renewing = false;
let again = false;

export async function renew(url = location.href) {
  if (renewing) { again = true; return false; }
  renewing = true;
  let done = false;
  try {
    const answer = await fetch(url, { headers: { accept: "text/html" } });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live][id]")) {
      const other = fresh.getElementById(part.id);
      if (!other && "untilGone" in part.dataset) { location.reload(); return; }
      if (!other || part.contains(document.activeElement) && document.activeElement !== document.body
          && document.activeElement.matches("input, select, textarea")) continue;
      if (part.outerHTML === other.outerHTML) continue;
      keepState(part, other);
      part.replaceWith(document.adoptNode(other));
    }
    localTimes();
    dispatchEvent(new CustomEvent("agl-renewed", { detail: fresh }));
    done = answer.ok;
  } catch { /* the next change tries again */ } finally {
    renewing = false;
    if (again) { again = false; setTimeout(renew, 1000); }
  }
  return done;
}

// Turns the page of a list without loading what stays.
async function turn(event) {
  const link = event.target.closest?.("a[rel=next][href], a[rel=prev][href]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const { href } = link;
  if (!(await renew(href))) { location.assign(href); return; }
  history.pushState(null, "", href);
  scrollTo(0, 0);
}

function keepState(part, other) {
  for (const box of part.querySelectorAll("input[type=checkbox]:checked")) {
    const twin = [...other.querySelectorAll("input[type=checkbox]")].find(
      (each) => each.name === box.name && each.value === box.value);
    if (twin) twin.setAttribute("checked", "");
  }
  const marked = part.querySelector("[data-row].marked");
  if (marked) other.querySelector(`[data-row="${CSS.escape(marked.dataset.row)}"]`)?.classList.add("marked");
  for (const open of part.querySelectorAll("details[open][id]")) {
    other.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
  }
}

// A hidden tab gives its connection back: a browser keeps only a few per server.
function follow() {
  const { events, version } = document.body.dataset;
  if (!events || !window.EventSource) return;
  const light = document.getElementById("live");
  let since = version;
  let stream = null;
  let waiting = 0;
  const open = () => {
    if (stream) return;
    stream = new EventSource(`${events}?since=${encodeURIComponent(since)}`);
    stream.addEventListener("open", () => { light.hidden = false; light.classList.remove("off"); });
    stream.addEventListener("error", () => light.classList.add("off"));
    stream.addEventListener("change", (event) => {
      since = event.lastEventId;
      clearTimeout(waiting);
      waiting = setTimeout(() => renew(), 250);
      dispatchEvent(new CustomEvent("agl-change", { detail: JSON.parse(event.data) }));
    });
  };
  const close = () => { stream?.close(); stream = null; };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  if (!document.hidden) open();
}

// Keys: J and K through the rows of a list, Enter opens, Esc goes back.
function rows() {
  return [...document.querySelectorAll("[data-row]")].filter((each) => !each.hidden);
}

function mark(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((each) => each.classList.contains("marked"));
  all[at]?.classList.remove("marked");
  const next = all[Math.min(Math.max(at < 0 ? (step > 0 ? 0 : all.length - 1) : at + step, 0), all.length - 1)];
  next.classList.add("marked");
  next.scrollIntoView({ block: "nearest" });
  next.dispatchEvent(new Event("agl-marked", { bubbles: true }));
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches?.("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const link = (name) => document.querySelector(`a[data-key="${name}"]`);
  if (event.key === "j" || event.key === "k") {
    const neighbour = link(event.key);
    if (neighbour) neighbour.click();
    else mark(event.key === "j" ? 1 : -1);
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    if (!document.querySelector("[data-arrows]")) return;
    mark(event.key === "ArrowDown" ? 1 : -1);
    event.preventDefault();
  } else if (event.key === "Enter") {
    document.querySelector(".marked a.open")?.click();
  } else if (event.key === "Escape") {
    link("Escape")?.click();
  } else if (event.key === "/") {
    document.querySelector("input[type=search]")?.focus();
    event.preventDefault();
  }
}

async function copyLink() {
  const button = document.getElementById("copy");
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = location.href;
  }
  setTimeout(() => { button.textContent = "Link"; }, 1500);
}

document.getElementById("theme").addEventListener("click", chooseTheme);
document.getElementById("copy").addEventListener("click", copyLink);
document.addEventListener("keydown", onKey);
document.addEventListener("click", turn);
addEventListener("popstate", () => renew());
// A choice in a filter applies at once; empty fields stay out of the address.
for (const form of document.querySelectorAll("form[data-auto]")) {
  form.addEventListener("change", () => form.requestSubmit());
  form.addEventListener("submit", () => {
    for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
  });
}
localTimes();
follow();
