// The dots of the map: each is a new flow on its way. The browser moves them without the page's
// main thread, so they may be many. With reduced motion there are none.

import { h } from './dom.js';

const ALIVE = 90; // dots at once
const SPEED = 0.42; // units of the picture in a millisecond
const FADES = 100; // milliseconds of an arrival
const BENDS = [0.15, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1]; // where a curve is followed

export const still = matchMedia('(prefers-reduced-motion: reduce)');

const tones = { dnat: 'good', accept: 'pass', reject: 'bad', drop: 'bad' };

export class Dots {
  constructor() {
    this.element = h('div', { class: 'dots', 'aria-hidden': 'true' });
    this.scale = 1; // pixels of a unit
    this.left = 0; // flows that got none
    this.made = 0;
  }

  /** add starts a dot on these legs, up to a limit. */
  add(legs, verdict) {
    if (still.matches) return;
    if (this.element.childElementCount >= ALIVE) { this.left++; return; }
    this.made++;
    const dot = h('span', { class: `dot ${tones[verdict] ?? 'warn'}` });
    this.element.append(dot);
    const way = legs.reduce((sum, leg) => sum + leg.length, 0), duration = way / SPEED + FADES;
    const frames = [], share = (length) => length / SPEED / duration;
    let gone = 0;
    const frame = (leg, t) => {
      const { x, y } = leg.at(t);
      frames.push({ offset: share(gone + leg.length * t), opacity: 1, transform: `translate(${(x * this.scale).toFixed(1)}px, ${(y * this.scale).toFixed(1)}px)` });
    };
    frame(legs[0], 0);
    for (const leg of legs) {
      for (const t of leg.straight ? [1] : BENDS) frame(leg, t);
      gone += leg.length;
    }
    frames.push({ ...frames.at(-1), offset: 1, opacity: 0 });
    // Somewhere within the next moment: flows come in batches, and would move as one.
    dot.animate(frames, { duration, delay: Math.random() * 120, fill: 'both' }).onfinish = () => dot.remove();
  }

  clear() {
    this.element.replaceChildren();
  }
}
