// Counts for each second of the last minute, by the server's clock: records of the past, at the
// start of a stream, count in their own second.

const SECONDS = 60;

export class Rates {
  constructor() { this.clear(); }

  clear() {
    this.ring = Array.from({ length: SECONDS }, () => ({ second: -1, flows: 0, unanswered: 0, errors: 0 }));
    this.ahead = -Infinity; // how much the server's clock is ahead of performance.now(), in ms
    this.first = Infinity; // the first second with a record
    this.late = 0; // the age of incoming records, in ms: a page may be too slow
    this.clocks = new Map(); // how much each node's clock is ahead of performance.now(), in ms
  }

  /** add counts one of a kind at a time in milliseconds. */
  add(kind, time) {
    this.ahead = Math.max(this.ahead, time - performance.now());
    const second = Math.floor(time / 1000);
    this.first = Math.min(this.first, second);
    const slot = this.ring[second % SECONDS];
    if (second < slot.second || second <= this.now() - SECONDS) return; // too long ago
    if (slot.second !== second) Object.assign(slot, { second, flows: 0, unanswered: 0, errors: 0 });
    slot[kind]++;
  }

  /** age is the age of a record of a node, in ms, relative to the fastest record: the clocks of nodes differ. */
  age(node, emitted) {
    const now = performance.now(), ahead = Math.max(this.clocks.get(node) ?? -Infinity, emitted - now);
    this.clocks.set(node, ahead);
    this.ahead = Math.max(this.ahead, ahead);
    return now + ahead - emitted;
  }

  /** now is the current second; on a page that is behind, the second of the records it receives. */
  now() {
    return this.ahead === -Infinity ? 0 : Math.floor((performance.now() + this.ahead - this.late) / 1000);
  }

  at(second, kind) {
    const slot = this.ring[((second % SECONDS) + SECONDS) % SECONDS];
    return slot.second === second ? slot[kind] : 0;
  }

  /** series gives the whole seconds, oldest first. */
  series(kind) {
    const now = this.now();
    return Array.from({ length: SECONDS - 1 }, (_, i) => this.at(now - SECONDS + 1 + i, kind));
  }

  sum(kind) {
    return this.ring.reduce((sum, slot) => sum + (slot.second > this.now() - SECONDS ? slot[kind] : 0), 0);
  }

  /** perSecond is the mean of the last whole seconds, three at most. */
  perSecond() {
    const now = this.now();
    const whole = Math.min(3, now - this.first);
    if (whole < 1) return this.at(now, 'flows');
    let sum = 0;
    for (let i = 1; i <= whole; i++) sum += this.at(now - i, 'flows');
    return sum / whole;
  }

  /** peak is the current count per second; it follows a rise immediately. */
  peak() {
    const now = this.now();
    return Math.max(this.at(now, 'flows'), this.at(now - 1, 'flows'));
  }
}
