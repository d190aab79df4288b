// The stream of flows: one connection for all views. It counts all flows and keeps the newest
// as rows, at most ROWS.

import { get } from './api.js';
import { Connections } from './connections.js';
import { past, queryOf } from './filter.js';
import { EventStream } from './events.js';
import { Rates } from './rates.js';
import { isError } from './words.js';

const ROWS = 400; // kept
const BEFORE = 200; // requested of the past
const RATE = 5000; // records per second, at most, of all nodes; beyond it the server sends a sample of flows
const CALM = 200; // flows per second, above which only a sample becomes rows
const BUSY = 100; // rows in a second then, at most
const HEART = 1000; // milliseconds after which counts are redrawn without new records
const LATE = 2000; // milliseconds; the delay from which a page counts as late
const DRAW = 100; // milliseconds from one drawing to the next, at least
const SHARE = 9; // and so many times as long as a drawing takes: the rest of the time is for all else
const PAUSE = 2000; // milliseconds, at most: a computer that was suspended did not draw all that time
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
    this.connections = new Connections();
    this.listeners = new Set();
    this.fresh = []; // first records of flows since the last drawing
    this.filters = null; // as a query; null: never opened
    this.reset();
    setInterval(() => { if (this.source) this.changed(); }, HEART);
    // A message of its own comes after the browser has laid out and painted.
    this.painted = new MessageChannel();
    this.painted.port1.onmessage = () => {
      this.pause = Math.min(PAUSE, SHARE * (performance.now() - this.drawn));
      this.drawing = false;
      if (this.dirty) this.changed();
    };
    this.pause = 0;
  }

  reset() {
    this.rows.clear();
    this.rates.clear();
    this.connections.clear();
    this.fresh.length = 0;
    this.seen = [new Set(), new Set()];
    this.others = new Set(); // ids of records that are in the row of another node's record
    this.sample = 1; // one in this many flows becomes a row
    this.missed = new Map(); // {count, at}, by why
    this.gaps = []; // of a history
    this.error = '';
    this.connected = false;
    this.read = false; // all of a time of the past
    this.leftOut = 0; // flows for no service
    this.age = Infinity; // of the newest record since the last drawing
  }

  /** listen registers a callback for changes, called at most ten times a second, and less often where drawing is slow. */
  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** open follows the flows of these filters; no effect if it already does. */
  open(filters) {
    const query = filters.toString();
    if (query === this.filters && (this.source || this.retry)) return;
    this.close();
    if (query !== this.filters) this.reset();
    this.filters = query;
    this.query = queryOf(filters).toString();
    this.past = past(filters);
    this.connect();
    this.changed();
  }

  /** forget ends the stream: its flows are those of another lab. */
  forget() {
    this.close();
    this.reset();
    this.filters = null;
  }

  /** again reads the same time of the past once more. */
  again() {
    this.close();
    this.connect();
    this.changed();
  }

  connect() {
    this.retry = 0;
    this.read = false;
    const oldest = this.newest(ROWS).at(-1);
    const from = oldest ? `since=${new Date(oldest.at).toISOString()}` : `limit=${BEFORE}`;
    const which = this.past ? `limit=${BEFORE}` : `follow=true&rate=${RATE}&${from}`;
    const source = new EventStream(`/v1/flows?joined=true&${which}${this.query && `&${this.query}`}`, this.past);
    this.source = source;
    source.addEventListener('open', () => {
      this.connected = true;
      this.error = '';
      this.rows.clear(); // the stream sends those still known first
      this.leftOut = 0;
      this.gaps.length = 0;
      this.changed();
    });
    source.addEventListener('end', () => {
      this.source = null; // the view that is opened next reads it again
      this.read = true;
      this.changed();
    });
    source.addEventListener('flow', (e) => this.take(e.data));
    source.addEventListener('missed', (e) => this.miss(e.data));
    source.addEventListener('joined', (e) => this.join(e.data));
    source.addEventListener('error', () => { if (source === this.source) this.probe(); });
  }

  /** probe finds the reason of a failed stream with a plain request, and retries. */
  async probe() {
    this.close();
    const filters = this.filters;
    try {
      await get(`/v1/flows?limit=1${this.query && `&${this.query}`}`);
      this.error = 'Connection lost. Reconnecting …';
    } catch (e) {
      // A response of one line is JSON, an empty one is not: neither is a server error.
      this.error = e.status >= 200 && e.status < 300 ? 'Connection lost. Reconnecting …' : e.message;
      if (e.status >= 400 && e.status < 500 && e.status !== 429) { this.changed(); return; } // a retry would not help
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
    if (this.past) {
      this.rows.set(r.id, r);
      if (first) this.fresh.push(r);
      this.changed();
      return;
    }
    if (r.emitted) this.age = Math.min(this.age, this.rates.age(r.node, Date.parse(r.emitted)));
    if (first) this.rates.add('flows', r.at);
    if (first || r.event === state) {
      const since = Date.parse(r.life?.since ?? r.time);
      if (state === 'unanswered') this.rates.add('unanswered', since);
      else if (isError(state)) this.rates.add('errors', since);
    }
    this.connections.take(r, this.rates.now());
    const known = !r.event; // a record of the past: after a reconnection perhaps not new
    const picked = hash(r.id) % this.sample === 0;
    const before = this.rows.get(r.id);
    if (before) this.rows.set(r.id, Object.assign(r, { others: before.others }));
    else if ((first || known) && picked && !this.others.has(r.id)) this.keep(r);
    if (first && picked) this.fresh.push(r);
    if (this.fresh.length > ROWS) this.fresh.shift();
    this.changed();
  }

  /** join puts what another node decided about the same connection into the row of the first record. */
  join(data) {
    const { flow, other } = JSON.parse(data);
    this.others.add(other.id);
    if (this.others.size > REMEMBERED) this.others.delete(this.others.values().next().value);
    this.rows.delete(other.id);
    const r = this.rows.get(flow);
    if (r) this.rows.set(flow, { ...r, others: [...(r.others ?? []).filter((o) => o.id !== other.id), other] });
    this.changed();
  }

  /** newest returns the last records of the newest flows, newest first: records of several nodes arrive out of order. */
  newest(count) {
    return [...this.rows.values()].reverse().sort((a, b) => b.at - a.at).slice(0, count);
  }

  keep(r) {
    this.rows.set(r.id, r);
    if (this.rows.size > ROWS) this.rows.delete(this.rows.keys().next().value);
  }

  miss(data) {
    const m = JSON.parse(data);
    if (m.why === 'no-daemon') return; // shown above each view
    if (m.why === 'left-out') this.leftOut += m.missed;
    else if (this.past) this.gaps.push(m);
    else this.missed.set(m.why, { count: (this.missed.get(m.why)?.count ?? 0) + m.missed, at: performance.now() });
    this.changed();
  }

  changed() {
    this.dirty = true;
    if (this.timer || this.drawing) return;
    const wait = Math.max(0, Math.max(DRAW, this.pause) - (performance.now() - (this.drawn ?? -DRAW)));
    this.timer = setTimeout(() => requestAnimationFrame(() => this.draw()), wait);
  }

  draw() {
    this.timer = 0;
    this.dirty = false;
    this.drawing = true; // until it is painted: only then the pause is known
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
