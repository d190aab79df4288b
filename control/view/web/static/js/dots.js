// The dots of the map: each is a new flow. The paths of recent flows are faint lines; with
// reduced motion there are lines only.

import { s } from './dom.js';

const ALIVE = 90; // dots at once
const SPEED = 0.42; // units of the picture in a millisecond
const LINES = 60; // ways that are shown, the latest

export const still = matchMedia('(prefers-reduced-motion: reduce)');

const tones = { dnat: 'good', accept: 'pass', reject: 'bad', drop: 'bad' };

/** Leg is a curve from one place to the next, upright at both ends. */
class Leg {
  constructor(a, b) {
    const bend = Math.sign(b.y - a.y || 1) * Math.max(14, Math.abs(b.y - a.y) * 0.45);
    this.points = [a, { x: a.x, y: a.y + bend }, { x: b.x, y: b.y - bend }, b];
    this.length = Math.hypot(b.x - a.x, b.y - a.y) * 1.08 + 1;
  }

  at(t) {
    const u = 1 - t, [a, b, c, d] = this.points;
    const mix = (k) => u * u * u * a[k] + 3 * u * u * t * b[k] + 3 * u * t * t * c[k] + t * t * t * d[k];
    return { x: mix('x'), y: mix('y') };
  }

  get path() {
    const [a, b, c, d] = this.points.map((p) => `${p.x.toFixed(1)} ${p.y.toFixed(1)}`);
    return `M${a}C${b} ${c} ${d}`;
  }
}

export class Dots {
  constructor() {
    this.trails = s('g', { class: 'trails', 'aria-hidden': 'true' });
    this.element = s('g', { class: 'dots', 'aria-hidden': 'true' });
    this.dots = [];
    this.lines = new Map(); // by what they look like, the latest last
    this.left = 0; // flows that got none
    this.made = 0;
  }

  /** add starts a dot for a flow, up to a limit. */
  add(points, verdict) {
    const tone = tones[verdict] ?? 'warn';
    const legs = points.slice(1).map((p, i) => new Leg(points[i], p));
    for (const leg of legs) this.line(leg.path, tone);
    if (still.matches) { this.made++; return; }
    if (this.dots.length >= ALIVE) { this.left++; return; }
    this.made++;
    const element = s('circle', { class: `dot ${tone}`, r: tone === 'bad' ? 5.5 : 4.5, cx: points[0].x, cy: points[0].y });
    this.element.append(element);
    // Somewhere within the next moment: flows come in batches, and would move as one.
    this.dots.push({ element, legs, sum: legs.reduce((a, leg) => a + leg.length, 0), start: performance.now() + Math.random() * 120 });
    if (!this.frame) this.frame = requestAnimationFrame((now) => this.step(now));
  }

  line(path, tone) {
    const key = `${tone} ${path}`;
    const line = this.lines.get(key) ?? s('path', { class: `trail ${tone}`, d: path });
    this.lines.delete(key);
    this.lines.set(key, line);
    if (!line.parentNode) this.trails.append(line);
    if (this.lines.size <= LINES) return;
    const [oldest, element] = this.lines.entries().next().value;
    element.remove();
    this.lines.delete(oldest);
  }

  step(now) {
    this.frame = 0;
    this.dots = this.dots.filter((dot) => this.move(dot, now));
    if (this.dots.length > 0) this.frame = requestAnimationFrame((next) => this.step(next));
  }

  /** move is false when the dot has arrived. */
  move(dot, now) {
    const gone = Math.max(0, now - dot.start) * SPEED;
    if (gone >= dot.sum + 100) { dot.element.remove(); return false; }
    let rest = Math.min(gone, dot.sum), i = 0;
    while (i < dot.legs.length - 1 && rest > dot.legs[i].length) rest -= dot.legs[i++].length;
    const t = Math.min(1, rest / dot.legs[i].length);
    const { x, y } = dot.legs[i].at(t * t * (3 - 2 * t));
    dot.element.setAttribute('cx', x);
    dot.element.setAttribute('cy', y);
    if (gone > dot.sum) dot.element.setAttribute('opacity', 1 - (gone - dot.sum) / 100);
    return true;
  }

  clear() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.dots = [];
    this.lines.clear();
    this.element.replaceChildren();
    this.trails.replaceChildren();
  }
}
