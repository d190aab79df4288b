// The column widths of the table of flows.

import { host, isToday, parts, who } from './format.js';
import { fonts, width } from './letters.js';
import { decided } from './way.js';
import { reasons } from './words.js';

const SIZE = 14; // of letters; lengths here are for a root of this size, in pixels
const PADDING = 1.44 * SIZE + 3; // of a cell
const LEAST = { source: 90, to: 90, got: 90, node: 50 };
const MOST = { source: 250, to: 250, got: 250, node: 180 }; // the most that a column takes
// What may be left out, in this order, so that names are whole; and the room that this gives.
const OPTIONAL = [13.4 * SIZE, 5.6 * SIZE]; // bytes and duration, protocol; then the node
const DATE = 1.4 * SIZE; // of times that are not of today
const FIXED = 18.1 * SIZE + OPTIONAL[0] + OPTIONAL[1]; // time and state, too

const measure = (text) => width(text, 'body') * SIZE / fonts.body.size;
const named = (name, address) => (name ? name + parts(address)[1] : address);

/** Widths are the widths of the columns of names. They only grow, so that rows stay aligned. */
export class Widths {
  constructor(table) {
    this.table = table;
    table.dataset.out = 0;
    this.observer = new ResizeObserver(([e]) => { this.room = e.contentRect.width; this.changed = true; this.apply(); });
    this.observer.observe(table);
    this.clear();
  }

  leave() { this.observer.disconnect(); }

  clear() {
    this.needs = { ...LEAST };
    delete this.table.dataset.dated;
    this.changed = true;
  }

  add(r) {
    const name = who(r);
    if (!('dated' in this.table.dataset) && !isToday(r.time)) { this.table.dataset.dated = ''; this.changed = true; }
    this.need('source', named(name === host(r.source) ? '' : name, r.source));
    this.need('to', named(r.service, r.destination));
    this.need('got', r.verdict === 'dnat' ? named(r.pod, r.endpoint) : reasons[r.reason] ?? r.reason);
    for (const [i, o] of decided(r).entries()) this.need('node', i > 0 ? `→ ${o.node}` : o.node);
  }

  need(column, text) {
    const need = Math.min(MOST[column], measure(text));
    if (need > this.needs[column]) { this.needs[column] = need; this.changed = true; }
  }

  /** apply distributes the width, if anything changed. */
  apply() {
    const { size } = document.documentElement.dataset;
    if (!this.room || !this.changed && size === this.size) return;
    this.changed = false;
    this.size = size;
    const room = this.room * SIZE / parseFloat(getComputedStyle(document.documentElement).fontSize);
    let lacks = FIXED + ('dated' in this.table.dataset ? DATE : 0) + Object.values(this.needs).reduce((sum, n) => sum + n + PADDING, 0) - room;
    let out = 0;
    for (const gives of [...OPTIONAL, this.needs.node + PADDING]) {
      if (lacks <= 0) break;
      lacks -= gives;
      out++;
    }
    if (lacks > 0) out = OPTIONAL.length; // names are cut in any case: the nodes stay, whole
    this.table.dataset.out = out;
    for (const [column, n] of Object.entries(this.needs)) this.table.style.setProperty(`--${column}`, column === 'node' ? `${((n + PADDING) / SIZE).toFixed(2)}rem` : `${Math.round(n + PADDING)}fr`);
  }
}
