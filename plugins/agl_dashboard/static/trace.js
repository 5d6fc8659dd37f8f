// The tree of a rollout: details of a span on demand, further spans when they come into view.

const box = document.getElementById("detail");
const tree = document.getElementById("tree");
let asked = 0;

async function show(link) {
  const number = ++asked;
  const { row } = link.dataset;
  for (const each of document.querySelectorAll("#tree .marked")) if (each !== link) each.classList.remove("marked");
  link.classList.add("marked");
  const url = new URL(box.dataset.detail, location.href);
  url.searchParams.set("span", row);
  const answer = await fetch(url);
  if (number !== asked) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const place = document.getElementById("detail");
  place.replaceChildren(...fresh.body.childNodes);
  place.scrollTop = 0;
  const here = new URL(location.href);
  here.searchParams.set("span", row);
  here.searchParams.delete("at");
  history.replaceState(null, "", here);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("#tree a[data-row]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  show(link);
});
let waiting = 0;
document.addEventListener("agl-marked", (event) => {
  clearTimeout(waiting);
  waiting = setTimeout(() => show(event.target), 80);
});

const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) more(target);
}, { root: tree, rootMargin: "600px" });

async function more(link) {
  seen.unobserve(link);
  const answer = await fetch(link.dataset.next);
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  link.replaceWith(...fresh.body.childNodes);
  watch();
}

function watch() {
  for (const link of document.querySelectorAll("#tree a[data-next]")) seen.observe(link);
}

document.querySelector("#tree .marked")?.scrollIntoView({ block: "center" });
watch();
addEventListener("agl-renewed", watch);
