// Returns what is wrong with the page, in words.
const faults = [];
const name = (e) => `${e.tagName.toLowerCase()}.${e.classList[0] ?? ""}: ${(e.textContent || "").trim().slice(0, 40)}`;
const width = document.documentElement.clientWidth;
const ancestors = function* (e) { for (; e; e = e.parentElement) yield e; };
const scrolls = (e) => [...ancestors(e)].some(
    (p) => p !== document.body && /auto|scroll|hidden|clip/.test(getComputedStyle(p).overflowX));

const widest = document.documentElement.scrollWidth;
if (widest > width) faults.push(`wider than the window: ${widest}`);
for (const image of document.images) {
    if (!image.hasAttribute("alt")) faults.push(`no words for a picture: ${image.src.slice(-60)}`);
    if (image.complete && !image.naturalWidth) faults.push(`no picture: ${image.src.slice(-60)}`);
}

// Colors as what a canvas makes of them: (red, green, blue, opacity).
const one = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
const canvas = one.getContext("2d", {willReadFrequently: true});
const rgba = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
};
const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a), 1];
const behind = (e) => [...ancestors(e)].reverse()
    .reduce((below, p) => over(rgba(getComputedStyle(p).backgroundColor), below), [255, 255, 255, 1]);
const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);

const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), seen = new Set();
while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || seen.has(e) || e.closest("svg, script, style, .headerlink")) continue;
    seen.add(e);
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    if (!e.checkVisibility({opacityProperty: true, visibilityProperty: true}) || box.width < 2) continue;
    if (box.right > width + 1 && !scrolls(e)) faults.push(`beyond the window: ${name(e)}`);
    const ground = behind(e), [a, b] = [light(over(rgba(style.color), ground)), light(ground)];
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < (isLarge ? 3 : 4.5)) faults.push(`contrast ${ratio.toFixed(2)}: ${name(e)}`);
}
return faults;
