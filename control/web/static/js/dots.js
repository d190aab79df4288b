// The dots of the map: each is a flow on its way. Whoever does not want motion gets the last
// ways as lines.

import { s } from './dom.js';

const ALIVE = 90; // dots at once
const SPEED = 0.55; // units of the picture in a millisecond
const LINES = 14;

export const still = matchMedia('(prefers-reduced-motion: reduce)');

const tones = { dnat: 'good', accept: 'pass', reject: 'bad', drop: 'bad' };

export class Dots {
  constructor() {
    this.element = s('g', { class: 'dots', 'aria-hidden': 'true' });
    this.dots = [];
    this.left = 0; // flows that got none
    this.made = 0;
  }

  /** add sends a flow on its way, unless there are enough. */
  add(points, verdict) {
    const tone = tones[verdict] ?? 'warn';
    if (still.matches) {
      this.element.append(s('path', { class: `trail ${tone}`, d: `M${points.map((p) => `${p.x} ${p.y}`).join('L')}` }));
      while (this.element.childElementCount > LINES) this.element.firstChild.remove();
      this.made++;
      return;
    }
    if (this.dots.length >= ALIVE) { this.left++; return; }
    this.made++;
    const lengths = points.slice(1).map((p, i) => Math.hypot(p.x - points[i].x, p.y - points[i].y));
    const element = s('circle', { class: `dot ${tone}`, r: tone === 'bad' ? 5 : 4 });
    this.element.append(element);
    // Somewhere within the next moment: flows come in batches, and would move as one.
    this.dots.push({ element, points, lengths, sum: lengths.reduce((a, b) => a + b, 0), start: performance.now() + Math.random() * 120, tone });
    if (!this.frame) this.frame = requestAnimationFrame((now) => this.step(now));
  }

  step(now) {
    this.frame = 0;
    this.dots = this.dots.filter((dot) => this.move(dot, now));
    if (this.dots.length > 0) this.frame = requestAnimationFrame((next) => this.step(next));
  }

  /** move says whether the dot is still on its way. */
  move(dot, now) {
    const gone = Math.max(0, now - dot.start) * SPEED;
    if (gone >= dot.sum + 120) { dot.element.remove(); return false; }
    let rest = Math.min(gone, dot.sum), i = 0;
    while (i < dot.lengths.length - 1 && rest > dot.lengths[i]) rest -= dot.lengths[i++];
    const t = dot.lengths[i] ? rest / dot.lengths[i] : 1;
    const smooth = t * t * (3 - 2 * t);
    const a = dot.points[i], b = dot.points[i + 1];
    dot.element.setAttribute('cx', a.x + (b.x - a.x) * smooth);
    dot.element.setAttribute('cy', a.y + (b.y - a.y) * smooth);
    if (gone > dot.sum) dot.element.setAttribute('opacity', 1 - (gone - dot.sum) / 120);
    return true;
  }

  clear() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.dots = [];
    this.element.replaceChildren();
  }
}
