// Finds runs by name, and follows the folder.
import { renew } from "./app.js";

const find = document.getElementById("find");

function filter() {
  const wanted = find.value.toLowerCase();
  for (const row of document.querySelectorAll("tr[data-find]")) row.hidden = !row.dataset.find.includes(wanted);
}

find.addEventListener("input", filter);
addEventListener("agl-renewed", filter);
setInterval(() => { if (!document.hidden) renew(); }, 5000);
