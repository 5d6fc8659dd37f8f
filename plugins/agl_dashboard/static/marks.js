// Marks of answers: buttons, keys, and words that are sent when their field is left.

const by = document.getElementById("by");
let last = Promise.resolve();

function name() {
  try { return localStorage.getItem("agl-marks-by") || ""; } catch { return ""; /* storage is off */ }
}

function words(box) {
  const changed = {};
  for (const field of box.querySelectorAll("textarea")) {
    if (field.value !== field.defaultValue) changed[field.name] = field.value;
  }
  return changed;
}

function current(box) {
  return document.querySelector(`.mark[data-call="${CSS.escape(box.dataset.call)}"][data-choice="${box.dataset.choice}"]`);
}

// One change after the other, so that the page ends with the last state.
function send(box, change) {
  last = last.then(() => sendNow(box, change));
  return last;
}

async function sendNow(box, change) {
  const { rollout, attempt, call, choice } = box.dataset;
  const shown = current(box) || box;
  const say = (text) => { const place = shown.querySelector("[role=status]"); if (place) place.textContent = text; };
  let answer;
  try {
    answer = await fetch(box.dataset.send, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ rollout, attempt, call, choice: +choice, by: name(), ...change }),
    });
  } catch { say("Not saved: the dashboard does not answer"); return; }
  const text = await answer.text();
  if (!answer.ok) { say(`Not saved: ${text}`); return; }
  const fresh = new DOMParser().parseFromString(text, "text/html").querySelector(".mark");
  if (!fresh || !shown.isConnected) return;
  keep(shown, fresh, change);
  shown.replaceWith(fresh);
  fresh.querySelector("[role=status]").textContent = "Saved";
  document.querySelector("#tree .marked")?.setAttribute("data-verdict", fresh.dataset.verdict);
  dispatchEvent(new CustomEvent("agl-saved", { detail: fresh }));
}

// What was typed since, the open part and the focus stay.
function keep(shown, fresh, change) {
  const typed = words(shown);
  for (const [field, value] of Object.entries(typed)) {
    if (change[field] !== value) fresh.querySelector(`textarea[name=${field}]`).value = value;
  }
  if (shown.querySelector("details[open]")) fresh.querySelector("details").open = true;
  const active = document.activeElement;
  if (!shown.contains(active)) return;
  const same = ["set", "clear", "save", "begin"].map((each) => active.dataset[each] === undefined ? "" : each === "set" ? `[data-set=${active.dataset.set}]` : `[data-${each}]`).find(Boolean);
  const twin = fresh.querySelector(active.name ? `[name=${active.name}]` : same || "summary");
  requestAnimationFrame(() => twin?.focus());
}

function act(box, button) {
  if (button.dataset.set) send(box, { verdict: button.dataset.set, ...words(box) });
  else if ("clear" in button.dataset) send(box, { verdict: "", note: "", correction: "" });
  else if ("begin" in button.dataset) {
    const field = box.querySelector("textarea[name=correction]");
    if (!field.value) field.value = button.dataset.begin;
    field.focus();
  } else if ("save" in button.dataset && Object.keys(words(box)).length) send(box, words(box));
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.(".mark[data-send] button");
  if (button) act(button.closest(".mark"), button);
});
// Not "change", which a text that was filled in does not cause.
document.addEventListener("focusout", (event) => {
  const box = event.target.closest?.(".mark[data-send]");
  if (!box?.isConnected || !event.target.matches("textarea")) return;
  const changed = words(box);
  if (Object.keys(changed).length) send(box, changed);
});

const keys = { g: "[data-set=good]", b: "[data-set=bad]", u: "[data-clear]" };
const fields = { n: "note", c: "correction" };
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, select, textarea");
  if (typing && event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const box = document.querySelector(".mark[data-send]");
  if (!box) return;
  if (keys[event.key]) box.querySelector(keys[event.key]).click();
  else if (fields[event.key]) {
    box.querySelector("details").open = true;
    box.querySelector(`textarea[name=${fields[event.key]}]`).focus();
    event.preventDefault();
  }
});

if (by) {
  by.value = name();
  by.addEventListener("change", () => {
    try { localStorage.setItem("agl-marks-by", by.value.trim()); } catch { /* storage is off */ }
  });
}
