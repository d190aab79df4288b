// The stream of flows: one connection, whatever views show it. It counts all flows and keeps
// the newest as rows, of which there are never more than ROWS.

import { get } from './api.js';
import { queryOf } from './filter.js';
import { EventStream } from './events.js';
import { Rates } from './rates.js';
import { isError } from './words.js';

const ROWS = 400; // kept
const BEFORE = 200; // asked for of the past
const CALM = 200; // flows in a second, above which only some become rows
const BUSY = 100; // rows in a second then, at most
const HEART = 1000; // milliseconds after which counts are drawn again, although nothing came
const LATE = 2000; // milliseconds; a page that is not so much behind is not late
const DRAW = 100; // milliseconds from one drawing to the next, at least
const SHARE = 4; // and so many times as long as a drawing takes: the rest of the time is for all else
const PAUSE = 2000; // milliseconds, but no longer: a computer that slept meanwhile did not draw all night
const REMEMBERED = 20000; // ids, so that each flow counts once
const AGAIN = 2000; // milliseconds from the end of a connection to the next
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

function hash(id) {
  let x = 2166136261;
  for (let i = 0; i < id.length; i++) x = Math.imul(x ^ id.charCodeAt(i), 16777619);
  x ^= x >>> 15;
  return Math.imul(x, 0x2c1b3c6d) >>> 1;
}

class Stream {
  constructor() {
    this.rows = new Map(); // the last record of each flow, by id, oldest first
    this.rates = new Rates();
    this.listeners = new Set();
    this.fresh = []; // first records of flows since the last drawing
    this.filters = null; // as a query; null: never opened
    this.reset();
    setInterval(() => { if (this.source) this.changed(); }, HEART);
    // A message of its own comes after the browser has laid out and painted.
    this.painted = new MessageChannel();
    this.painted.port1.onmessage = () => { this.pause = Math.min(PAUSE, SHARE * (performance.now() - this.drawn)); };
    this.pause = 0;
  }

  reset() {
    this.rows.clear();
    this.rates.clear();
    this.fresh.length = 0;
    this.seen = [new Set(), new Set()];
    this.sample = 1; // one of so many flows becomes a row
    this.missed = new Map(); // {count, at}, by why
    this.error = '';
    this.connected = false;
    this.leftOut = 0; // flows for no service
    this.age = Infinity; // of the youngest record that came since the last drawing
  }

  /** listen calls back with the stream whenever there is something to draw, ten times a second at most, and more rarely where drawing takes long. */
  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** open follows the flows of these filters; nothing changes if it does already. */
  open(filters) {
    const query = filters.toString();
    if (query === this.filters && (this.source || this.retry)) return;
    this.close();
    if (query !== this.filters) this.reset();
    this.filters = query;
    this.query = queryOf(filters).toString();
    this.connect();
    this.changed();
  }

  connect() {
    this.retry = 0;
    const oldest = this.newest(ROWS).at(-1);
    const past = oldest ? `since=${new Date(oldest.at).toISOString()}` : `limit=${BEFORE}`;
    const source = new EventStream(`/v1/flows?follow=true&${past}${this.query && `&${this.query}`}`);
    this.source = source;
    source.addEventListener('open', () => {
      this.connected = true;
      this.error = '';
      this.rows.clear(); // what is still known of them comes first
      this.leftOut = 0;
      this.changed();
    });
    source.addEventListener('flow', (e) => this.take(e.data));
    source.addEventListener('missed', (e) => this.miss(e.data));
    source.addEventListener('error', () => { if (source === this.source) this.ask(); });
  }

  /** ask finds out why there is no stream, which itself cannot say, and has it try again. */
  async ask() {
    this.close();
    const filters = this.filters;
    try {
      await get(`/v1/flows?limit=1${this.query && `&${this.query}`}`);
      this.error = 'The connection broke. Trying again …';
    } catch (e) {
      // An answer of one line is JSON, of none is not: neither is an error of the server's.
      this.error = e.status >= 200 && e.status < 300 ? 'The connection broke. Trying again …' : e.message;
      if (e.status >= 400 && e.status < 500 && e.status !== 429) { this.changed(); return; } // asking again would not help
    }
    if (filters !== this.filters || this.source) return;
    this.retry = setTimeout(() => this.connect(), AGAIN);
    this.changed();
  }

  close() {
    this.source?.close();
    clearTimeout(this.retry);
    this.source = null;
    this.retry = 0;
    this.connected = false;
  }

  isNew(id) {
    if (this.seen[0].has(id) || this.seen[1].has(id)) return false;
    if (this.seen[0].size >= REMEMBERED) this.seen = [new Set(), this.seen[0]];
    this.seen[0].add(id);
    return true;
  }

  take(data) {
    const r = JSON.parse(data);
    r.at = Date.parse(r.time);
    const first = this.isNew(r.id);
    const state = r.life?.state;
    if (r.emitted) this.age = Math.min(this.age, this.rates.age(r.node, Date.parse(r.emitted)));
    if (first) this.rates.add('flows', r.at);
    if (first || r.event === state) {
      const since = Date.parse(r.life?.since ?? r.time);
      if (state === 'unanswered') this.rates.add('unanswered', since);
      else if (isError(state)) this.rates.add('errors', since);
    }
    const told = !r.event; // as it is, of the past: after a break not for the first time
    const picked = hash(r.id) % this.sample === 0;
    if (this.rows.has(r.id)) this.rows.set(r.id, r);
    else if ((first || told) && picked) this.keep(r);
    if (first && picked) this.fresh.push(r);
    if (this.fresh.length > ROWS) this.fresh.shift();
    this.changed();
  }

  /** newest gives the last records of the newest flows, newest first: of several nodes they do not come in order. */
  newest(count) {
    return [...this.rows.values()].reverse().sort((a, b) => b.at - a.at).slice(0, count);
  }

  keep(r) {
    this.rows.set(r.id, r);
    if (this.rows.size > ROWS) this.rows.delete(this.rows.keys().next().value);
  }

  miss(data) {
    const m = JSON.parse(data);
    if (m.why === 'left-out') this.leftOut += m.missed;
    else this.missed.set(m.why, { count: (this.missed.get(m.why)?.count ?? 0) + m.missed, at: performance.now() });
    this.changed();
  }

  changed() {
    if (this.timer) return;
    const wait = Math.max(0, Math.max(DRAW, this.pause) - (performance.now() - (this.drawn ?? -DRAW)));
    this.timer = setTimeout(() => requestAnimationFrame(() => this.draw()), wait);
  }

  draw() {
    this.timer = 0;
    this.drawn = performance.now();
    this.rates.late = this.age === Infinity || this.age < LATE ? 0 : this.age;
    this.age = Infinity;
    const peak = this.rates.peak();
    this.sample = peak <= CALM ? 1 : STEPS.find((n) => peak / n <= BUSY) ?? STEPS.at(-1);
    for (const listener of this.listeners) listener(this);
    this.fresh.length = 0;
    this.painted.port2.postMessage(null);
  }
}

/** stream is the only one. */
export const stream = new Stream();
