// Starts the page, and draws anew what the address says when it changes.

const MAKERS = { overview, graph: graphView, passes: passesView, tables: tablesView, precision: precisionView, beside: besideView };
let drawn = "";

function render() {
  const now = state();
  const name = now.view in MAKERS ? now.view : DEFAULTS.view;
  for (const button of document.getElementById("views").children) {
    button.setAttribute("aria-current", button.dataset.view === name ? "page" : "false");
  }
  const key = JSON.stringify({ ...now, node: "" });
  showDetails();
  if (key === drawn) return markSelected(false);
  drawn = key;
  document.getElementById("view").replaceChildren(MAKERS[name]());
}

function setUpTheme() {
  const button = document.getElementById("theme");
  const dark = () => document.documentElement.dataset.theme === "dark";
  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    drawn = ""; // what is drawn on canvas has the colours of the other theme
    render();
  });
}

document.getElementById("title").textContent = DATA.title;
document.getElementById("about").textContent = DATA.about.map(([label, value]) => `${label}: ${value}`).join(" · ");
document.getElementById("views").append(
  ...Object.entries(VIEWS).map(([view, label]) =>
    el("button", { type: "button", "data-view": view, onclick: () => go({ view }) }, label),
  ),
);
setUpTheme();
setUpSearch();
addEventListener("hashchange", render);
let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => {
    drawn = "";
    render();
  }, 150);
});
render();
document.documentElement.dataset.ready = "true";
