// Filters, as in the page's address, the API's query and the chips of the filter bar.

import { host, port, split } from './format.js';

const ALL = 'all'; // not a filter: also show flows for no service
const TIME = ['since', 'until']; // a time of the past

/** chosen is true if the filters select verdicts or reasons, and with them flows for a service or for none. */
export const chosen = (filters) => filters.has('verdict') || filters.has('reason');

/** servicesOnly is true if flows for no service are left out. */
export const servicesOnly = (filters) => !filters.has(ALL) && !chosen(filters);

/** withServicesOnly returns the filters without (or with) flows for no service. */
export function withServicesOnly(filters, is) {
  const next = new URLSearchParams(filters);
  if (is) next.delete(ALL);
  else next.set(ALL, 'true');
  return next;
}

/** chipsOf are the filters as [field, value]. */
export const chipsOf = (filters) => [...filters].filter(([field]) => field !== ALL && !TIME.includes(field)).flatMap(([field, list]) => list.split(',').map((value) => [field, value]));

/** past is true if the filters select a time of the past, which a history has. */
export const past = (filters) => TIME.some((field) => filters.has(field));

/** withTime returns the filters with another time; without one, it is the present. */
export function withTime(filters, since = '', until = '') {
  const next = new URLSearchParams(filters);
  for (const [i, value] of [since, until].entries()) {
    if (value) next.set(TIME[i], value);
    else next.delete(TIME[i]);
  }
  return next;
}

/** queryOf is the API's query for the filters. */
export function queryOf(filters) {
  const query = new URLSearchParams(filters);
  query.delete(ALL);
  if (servicesOnly(filters)) query.set('servicesonly', 'true');
  if (past(filters) && !query.has('until')) query.set('until', '0s'); // an age: now
  return query;
}

/** fields are the filters of GET /v1/flows that have a chip, with their description. */
export const fields = {
  service: 'NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT',
  namespace: 'of the service or of either pod',
  pod: 'source or endpoint',
  node: 'the deciding node',
  source: 'address, prefix or name, before translation',
  destination: 'address or prefix, before translation',
  endpoint: 'address or prefix, after translation',
  port: 'destination port, before translation',
  protocol: 'TCP, UDP or SCTP',
  verdict: 'dnat, accept, reject or drop',
  reason: 'of the verdict',
  state: 'closed, unanswered, refused …',
};

/** filtersOf extracts the filters from a query. */
export function filtersOf(query) {
  const filters = new URLSearchParams();
  if (query.get(ALL) === 'true') filters.set(ALL, 'true');
  for (const field of [...Object.keys(fields), ...TIME]) {
    const value = query.get(field);
    if (value) filters.set(field, value);
  }
  return filters;
}

/** withFilter returns the filters with one more value; several values of one field are a list. */
export function withFilter(filters, field, value) {
  const next = new URLSearchParams(filters);
  const values = (next.get(field) ?? '').split(',').filter(Boolean);
  if (!values.includes(value)) values.push(value);
  next.set(field, values.join(','));
  return next;
}

export function withoutFilter(filters, field, value) {
  const next = new URLSearchParams(filters);
  const values = (next.get(field) ?? '').split(',').filter((v) => v && v !== value);
  if (values.length > 0) next.set(field, values.join(','));
  else next.delete(field);
  return next;
}

/** link is the address of the flows view with these filters. */
export const link = (filters) => `#/flows${filters.size > 0 ? `?${filters}` : ''}`;

/** Seen collects the values of flows, for suggestions. */
export class Seen {
  constructor() { this.values = Object.fromEntries(Object.keys(fields).map((f) => [f, new Map()])); }

  note(field, value) {
    const values = this.values[field];
    if (!value) return;
    const count = values.get(value) ?? 0;
    values.delete(value);
    values.set(value, count + 1);
    if (values.size > 300) values.delete(values.keys().next().value);
  }

  record(r) {
    this.note('service', r.service);
    for (const name of [r.service, r.pod, r.sourcePod]) if (name) this.note('namespace', split(name)[0]);
    this.note('pod', r.pod);
    this.note('pod', r.sourcePod);
    this.note('node', r.node);
    this.note('source', host(r.source));
    this.note('destination', host(r.destination));
    this.note('endpoint', r.endpoint);
    this.note('port', port(r.destination));
    this.note('protocol', r.protocol);
    this.note('verdict', r.verdict);
    this.note('reason', r.reason);
    if (r.life) this.note('state', r.life.state);
  }

  /** suggest returns at most eight {field, value} for the typed text; the value is empty for a field's name. */
  suggest(text) {
    const typed = text.trim().toLowerCase();
    const colon = typed.indexOf(':');
    const field = colon > 0 && fields[typed.slice(0, colon)] ? typed.slice(0, colon) : '';
    const among = field ? [field] : Object.keys(fields);
    const want = field ? typed.slice(colon + 1) : typed;
    const found = [];
    if (!field) for (const f of among) if (f.startsWith(typed)) found.push({ field: f, value: '', rank: typed ? 1 : 0 });
    if (field || typed) {
      for (const f of among) {
        for (const [value, count] of this.values[f]) {
          const at = value.toLowerCase().indexOf(want);
          if (at < 0) continue;
          found.push({ field: f, value, rank: (at === 0 ? 1e6 : /[/\-:.]/.test(value[at - 1]) ? 1e5 : 10) + Math.min(count, 9e4) });
        }
      }
    }
    return found.sort((a, b) => b.rank - a.rank).slice(0, typed ? 8 : 12);
  }
}
