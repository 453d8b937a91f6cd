"""One run, or a comparison, as one HTML file that works offline, on screen and on paper.

`run_page` and `compare` assemble it, `page` writes the tags around texts, `charts` and `timeline` draw the figures.
`report.css` and `report.js` are embedded.
"""
