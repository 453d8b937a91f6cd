"use strict";
// Draws the figures that the page carries, and draws them anew in the width of a sheet before it is printed.
const figures = JSON.parse(document.getElementById("figures").textContent);
const config = { displayModeBar: false, responsive: true, displaylogo: false };
const places = Object.keys(figures).map((name) => document.getElementById(name));
for (const place of places) {
  const { data, layout } = figures[place.id];
  Plotly.newPlot(place, data, layout, config);
}

// A sheet holds the whole time axis; the other figures stand two or three in a row.
const height = (place) => (place.id === "timeline" ? Math.min(800, figures.timeline.layout.height) : 215);

addEventListener("beforeprint", () => {
  document.body.classList.add("paper");
  for (const place of places) {
    Plotly.relayout(place, { width: place.clientWidth, height: height(place), "font.size": 9 });
  }
});
addEventListener("afterprint", () => {
  document.body.classList.remove("paper");
  for (const place of places) {
    const { height, font } = figures[place.id].layout;
    Plotly.relayout(place, { width: null, height, "font.size": font.size, autosize: true });
  }
});
