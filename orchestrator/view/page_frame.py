"""The frame of the page: its look in light and dark, and the script that draws."""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>{body}</main>
<script>{plotly}</script>
<script type="application/json" id="figures">{figures}</script>
<script>{script}</script>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --text: #1d232b; --dim: #5c6773;
  --edge: #d9dee4; --tile: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14181d; --text: #e4e8ec; --dim: #9aa5b1; --edge: #323a44; --tile: #1d232a; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 1.25rem; line-height: 1.4; font-weight: 600; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 32px 0 4px; }
.caption, small, .tile span { color: var(--dim); }
.caption { margin: 0 0 8px; font-size: 0.9rem; }
.note { border-left: 3px solid #e69f00; padding-left: 10px; }
.tiles { display: grid; gap: 10px; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.tile { background: var(--tile); border-radius: 8px; padding: 10px 14px; }
.tile span, .tile small { display: block; font-size: 0.8rem; }
.tile b { font-size: 1.25rem; font-weight: 600; }
.chart { width: 100%; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--edge);
  white-space: nowrap; }
th { color: var(--dim); font-weight: 500; }
.words { text-align: left; white-space: normal; }
td.words { min-width: 7rem; }
td.plan { min-width: 14rem; }
@media (max-width: 960px) {
  th, td { white-space: normal; padding: 5px 6px; }
  td { min-width: 4rem; }
  td.words { min-width: 6rem; }
  td.plan { min-width: 11rem; }
}
ul { padding-left: 20px; }
summary { cursor: pointer; margin-top: 24px; }
pre { background: var(--tile); border-radius: 8px; padding: 10px 14px; overflow-x: auto;
  font-size: 0.85rem; }
@media print {
  :root { --page: #ffffff; --text: #1d232b; --dim: #5c6773; --edge: #d9dee4; --tile: #f4f6f8; }
  main { max-width: none; padding: 0; }
  .chart, .tile, tr, li { break-inside: avoid; }
  h2, .caption { break-after: avoid; }
  pre { white-space: pre-wrap; }
  .wide { overflow: visible; }
  table { font-size: 0.75rem; }
  th, td { white-space: normal; padding: 4px 6px; }
  td.words, td.plan { min-width: 0; }
}
"""

SCRIPT = """
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 600px)");
function look() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return { text: of("--text"), edge: of("--edge") };
}
function draw() {
  const { text, edge } = look();
  for (const [name, figure] of Object.entries(figures)) {
    const axis = { gridcolor: edge, zerolinecolor: edge, linecolor: edge, automargin: true };
    const layout = {
      ...figure.layout,
      font: { color: text, size: narrow.matches ? 11 : 13 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      height: figure.layout.height + (narrow.matches && figure.layout.barmode ? 90 : 0),
      margin: { l: narrow.matches ? 44 : 60, r: 16, t: 24, b: 44 },
      xaxis: { ...figure.layout.xaxis, ...axis },
      yaxis: { ...figure.layout.yaxis, ...axis },
    };
    Plotly.react(name, figure.data, layout, { responsive: true, displayModeBar: false });
  }
}
draw();
const paper = window.matchMedia("print");
paper.addEventListener("change", () => {
  // what is folded is read on paper too, and charts take its width and colours
  if (paper.matches) document.querySelectorAll("details").forEach((folded) => (folded.open = true));
  draw();
});
dark.addEventListener("change", draw);
narrow.addEventListener("change", draw);
"""
