// Connections: the flows of the last minute, counted for each pair of a caller and a service, and
// of a service and an endpoint. All flows count, also those that are not shown.

import { host } from './format.js';
import { isError, state } from './words.js';

const SECONDS = 60;
const FLOWS = 20000; // counted, at most: of more flows a minute, the newest
const ADDRESSES = 8; // of a caller that are kept, for a filter

/** outcome is whether a flow was answered: answered, unanswered, failed, or waiting. */
export function outcome(r) {
  const now = state(r);
  if (isError(now)) return 'failed';
  if (r.life?.answered) return 'answered';
  return now === 'unanswered' || r.life?.over ? 'unanswered' : 'waiting';
}

const place = (kind, name, on = '') => ({ key: `${kind} ${name}`, kind, name, on });

function callerOf(r) {
  if (r.sourcePod) return place('pod', r.sourcePod, r.sourceNode);
  if (r.sourceHost) return place('host', r.sourceHost);
  return r.sourceNode ? place('node', r.sourceNode) : place('elsewhere', 'elsewhere');
}

const serviceOf = (r) => (r.service ? place('service', r.service.replace(/:[^:/]*$/, '')) : place('none', 'no service'));

function endpointOf(r) {
  if (r.pod) return place('pod', r.pod, r.endpointNode);
  return r.endpointNode ? place('node', r.endpointNode) : place('address', host(r.endpoint));
}

/** Connection is a pair of places, and the counts of its flows. */
class Connection {
  constructor(key, from, to) {
    Object.assign(this, { key, from, to, flows: 0, answered: 0, unanswered: 0, failed: 0, waiting: 0 });
    this.states = new Map(); // flows, by state
    this.reasons = new Map(); // flows that reached no endpoint, by reason
    this.addresses = new Set(); // of the callers or, to an endpoint, of endpoints
  }

  /** add counts a flow, or with by = -1 takes it away. */
  add(flow, by) {
    this.flows += by;
    this.count(flow, by);
    if (flow.reason) this.reasons.set(flow.reason, (this.reasons.get(flow.reason) ?? 0) + by);
  }

  count({ outcome: o, state: s }, by) {
    this[o] += by;
    const n = (this.states.get(s) ?? 0) + by;
    if (n > 0) this.states.set(s, n);
    else this.states.delete(s);
  }
}

/** shareOf is the share of answered flows; undefined while all are waiting. */
export function shareOf({ answered, unanswered, failed }) {
  const ended = answered + unanswered + failed;
  return ended > 0 ? answered / ended : undefined;
}

/** toneOf is good from 99% of answered flows on, warn from 90% on. */
export function toneOf(connection) {
  const share = shareOf(connection);
  return share === undefined ? 'wait' : share >= 0.99 ? 'good' : share >= 0.9 ? 'warn' : 'bad';
}

export class Connections {
  constructor() { this.clear(); }

  clear() {
    this.flows = new Map(); // the counted ones, by ID, in order of arrival
    this.calls = new Map(); // from callers to services
    this.selections = new Map(); // from services to endpoints
    this.held = new Set(); // keys of those that stay, even without flows
    this.since = -Infinity; // all flows from this second on are counted
  }

  /** take counts a flow, or its next state; now is the current second. */
  take(r, now) {
    const known = this.flows.get(r.id);
    if (known) { this.change(known, r); return; }
    const second = Math.floor(r.at / 1000);
    if (second <= now - SECONDS || second < this.since) return;
    const refused = r.verdict === 'reject' || r.verdict === 'drop';
    const flow = { second, outcome: outcome(r), state: state(r), reason: refused ? r.reason : '', of: [] };
    const from = callerOf(r), service = serviceOf(r);
    this.join(this.calls, from, service, host(r.source), flow);
    if (r.verdict === 'dnat') this.join(this.selections, service, endpointOf(r), host(r.endpoint), flow);
    this.flows.set(r.id, flow);
    this.expire(now);
  }

  join(connections, from, to, address, flow) {
    const key = `${from.key} > ${to.key}`;
    let c = connections.get(key);
    if (!c) connections.set(key, c = new Connection(key, from, to));
    if (c.addresses.size <= ADDRESSES) c.addresses.add(address);
    c.add(flow, 1);
    flow.of.push(c);
  }

  change(flow, r) {
    const next = { outcome: outcome(r), state: state(r) };
    if (next.state === flow.state && next.outcome === flow.outcome) return;
    for (const c of flow.of) { c.count(flow, -1); c.count(next, 1); }
    Object.assign(flow, next);
  }

  /** expire takes away flows that are older than a minute, and the oldest of too many. */
  expire(now) {
    for (const [id, flow] of this.flows) {
      const many = this.flows.size > FLOWS;
      if (flow.second > now - SECONDS && !many) return;
      if (many) this.since = flow.second + 1;
      this.flows.delete(id);
      for (const c of flow.of) {
        c.add(flow, -1);
        if (c.flows === 0) this.remove(c);
      }
    }
  }

  remove({ key }) {
    if (this.held.has(key)) return;
    this.calls.delete(key);
    this.selections.delete(key);
  }

  /** hold keeps the connections that are shown, with other counts as flows come and go. */
  hold(keys) {
    this.held = keys;
    for (const all of [this.calls, this.selections]) for (const c of all.values()) if (c.flows === 0) this.remove(c);
  }

  /** callsByService are all connections from callers, by the key of the service. */
  callsByService() {
    const by = new Map();
    for (const c of this.calls.values()) {
      if (!by.has(c.to.key)) by.set(c.to.key, []);
      by.get(c.to.key).push(c);
    }
    return by;
  }

  /** seconds is how many seconds the counts are of; first is the second of the first record. */
  seconds(now, first) {
    return Math.min(SECONDS, Math.max(1, now - Math.max(first, this.since)));
  }
}

/** filterOf are the filters that select the flows of a connection. */
export function filterOf({ from, to, addresses }) {
  const filters = new URLSearchParams(), list = addresses.size <= ADDRESSES ? [...addresses].join(',') : '';
  const set = (field, { kind, name }) => {
    const value = kind === 'pod' ? name : list || (kind === 'node' ? name : '');
    if (value) filters.set(field, value);
  };
  if (from.kind === 'service') {
    filters.set('service', from.name);
    set('endpoint', to);
    return filters;
  }
  if (to.kind === 'service') filters.set('service', to.name);
  else filters.set('reason', 'not-a-service');
  set('source', from);
  return filters;
}
