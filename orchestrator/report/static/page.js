const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 600px)");
const paper = window.matchMedia("print");

// plotly.js lies packed in the page; unpacked it runs as any script does
async function loadPlotly() {
  const packed = atob(document.getElementById("plotly").textContent);
  const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(name).trim();
  return { text: named("--text"), edge: named("--edge") };
}

function draw() {
  const { text, edge } = colours();
  for (const [name, figure] of Object.entries(figures)) {
    const axis = { gridcolor: edge, zerolinecolor: edge, linecolor: edge, automargin: true };
    const layout = {
      ...figure.layout,
      legend: { orientation: "h", traceorder: "normal", y: 0, yref: "container", yanchor: "bottom" },
      showlegend: true, // plotly draws none for a single trace
      font: { color: text, size: narrow.matches ? 11 : 13 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      height: figure.layout.height + (narrow.matches && figure.layout.barmode ? 90 : 0),
      margin: { l: narrow.matches ? 44 : 60, r: 16, t: 24, b: 44 },
      xaxis: { ...figure.layout.xaxis, ...axis },
      yaxis: { ...figure.layout.yaxis, ...axis },
    };
    Plotly.react(name, figure.data, layout, { responsive: true, displayModeBar: false });
  }
}

loadPlotly().then(() => {
  draw();
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
  paper.addEventListener("change", () => {
    // what is folded is read on paper too, and charts take its width and colours
    if (paper.matches) {
      document.querySelectorAll("details").forEach((folded) => (folded.open = true));
    }
    draw();
  });
});
