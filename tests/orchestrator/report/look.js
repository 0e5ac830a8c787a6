// Opens each page in a frame, one after the other, and writes down what it has become at each width.
// A frame can be as narrow as a phone, which a window of a browser without a screen cannot.
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function open(page) {
  const frame = document.createElement("iframe");
  frame.style = `border: 0; height: 900px; width: ${WIDTHS[0]}px`;
  const loaded = new Promise((resolve) => (frame.onload = resolve));
  frame.src = page;
  document.body.append(frame);
  await loaded;
  for (let waited = 0; waited < 100 && !drawn(frame); waited += 1) await pause(100);
  return frame;
}

function drawn(frame) {
  return [...frame.contentDocument.querySelectorAll(".chart")].every((chart) =>
    chart.querySelector(".main-svg"),
  );
}

function traces(chart) {
  const groups = [...chart.querySelectorAll(".scatterlayer .trace, .barlayer .trace")];
  return groups.filter((group) => group.querySelector("path")).length;
}

function look(frame) {
  const inner = frame.contentDocument;
  const figures = JSON.parse(inner.getElementById("figures").textContent);
  const charts = {};
  for (const [name, { data, layout }] of Object.entries(figures)) {
    const faults = frame.contentWindow.Plotly.validate(data, layout) ?? [];
    const chart = inner.getElementById(name);
    const { width, height } = chart.querySelector(".main-svg").getBoundingClientRect();
    charts[name] = {
      traces: traces(chart),
      faults: faults.map((fault) => fault.msg),
      inside: width > 100 && height > 100 && width <= inner.documentElement.clientWidth,
    };
  }
  const headline = inner.querySelector("h1");
  return {
    charts,
    headline: { text: headline.innerText, bottom: headline.getBoundingClientRect().bottom },
    title: inner.title,
    sideways: inner.documentElement.scrollWidth - inner.documentElement.clientWidth,
    taken_over: "pwned" in frame.contentWindow,
    images: inner.images.length,
  };
}

async function lookAtAll() {
  const found = {};
  for (const page of PAGES) {
    const frame = await open(page);
    found[page] = {};
    for (const width of WIDTHS) {
      frame.style.width = `${width}px`;
      await pause(500);
      found[page][width] = look(frame);
    }
    frame.remove();
  }
  return found;
}

lookAtAll().then((found) => {
  const told = document.createElement("pre");
  told.id = "found";
  told.textContent = JSON.stringify(found);
  document.body.append(told);
});
