// The dots of the map: each is a new flow on its way. With reduced motion there are none.

import { s } from './dom.js';

const ALIVE = 90; // dots at once
const SPEED = 0.42; // units of the picture in a millisecond

export const still = matchMedia('(prefers-reduced-motion: reduce)');

const tones = { dnat: 'good', accept: 'pass', reject: 'bad', drop: 'bad' };

export class Dots {
  constructor() {
    this.element = s('g', { class: 'dots', 'aria-hidden': 'true' });
    this.dots = [];
    this.left = 0; // flows that got none
    this.made = 0;
  }

  /** add starts a dot on these legs, up to a limit. */
  add(legs, verdict) {
    if (still.matches) return;
    if (this.dots.length >= ALIVE) { this.left++; return; }
    this.made++;
    const tone = tones[verdict] ?? 'warn', { x, y } = legs[0].at(0);
    const element = s('circle', { class: `dot ${tone}`, r: tone === 'bad' ? 5 : 4, cx: x, cy: y });
    this.element.append(element);
    // Somewhere within the next moment: flows come in batches, and would move as one.
    this.dots.push({ element, legs, sum: legs.reduce((a, leg) => a + leg.length, 0), start: performance.now() + Math.random() * 120 });
    if (!this.frame) this.frame = requestAnimationFrame((now) => this.step(now));
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
    const { x, y } = dot.legs[i].at(Math.min(1, rest / dot.legs[i].length));
    dot.element.setAttribute('cx', x.toFixed(1));
    dot.element.setAttribute('cy', y.toFixed(1));
    if (gone > dot.sum) dot.element.setAttribute('opacity', 1 - (gone - dot.sum) / 100);
    return true;
  }

  clear() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.dots = [];
    this.element.replaceChildren();
  }
}
