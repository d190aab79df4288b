// The figures of connections on the map, as texts.

import { shareOf } from './connections.js';
import { number, plural, rate, split } from './format.js';
import { isError, reasons } from './words.js';

/** often is a rate: a second or, below one, a minute; what is what there is so much of. */
export const often = (flows, seconds, what = '') => (flows >= seconds ? `${rate(flows / seconds)}${what}/s` : `${number(flows * 60 / seconds)}${what}/min`);

/** share is the share of answered flows. Only all are 100%, and only none are 0%. */
export function share(connection) {
  const x = shareOf(connection);
  if (x === undefined) return '–';
  return x > 0.99 && x < 1 ? '>99%' : x > 0 && x < 0.01 ? '<1%' : `${Math.round(x * 100)}%`;
}

/** span is how much time the counts are of. */
export const span = (seconds) => (seconds === 60 ? 'in the last minute' : `in the last ${plural(seconds, 'second')}`);

/** sumOf adds connections. */
export function sumOf(connections) {
  const sum = { flows: 0, answered: 0, unanswered: 0, failed: 0, waiting: 0 };
  for (const c of connections) for (const kind of Object.keys(sum)) sum[kind] += c[kind];
  return sum;
}

/** shortName is a name without its namespace, for pods. */
export const shortName = ({ kind, name }) => (kind === 'pod' ? split(name)[1] : name);

/** counts are the exact numbers of a connection, as pairs. */
export function counts(c) {
  const failed = [...c.states].filter(([name]) => isError(name));
  return [['flows', c.flows], ['answered', c.answered], ['unanswered', c.unanswered], ...failed, ['still waiting for a reply', c.waiting]].filter(([kind, n]) => n > 0 || kind === 'flows' || kind === 'answered');
}

/** refusals are why flows reached no endpoint, as pairs. */
export const refusals = (connections) => {
  const sum = new Map();
  for (const c of connections) for (const [why, n] of c.reasons) if (n > 0) sum.set(why, (sum.get(why) ?? 0) + n);
  return [...sum].map(([why, n]) => [reasons[why] ?? why, n]);
};

/** summary is a connection in one sentence. */
export function summary(c, seconds) {
  const list = counts(c).map(([kind, n]) => `${number(n)} ${kind}`).join(', ');
  return `${c.from.name} to ${c.to.name}: ${often(c.flows, seconds)}, ${share(c)} answered; ${span(seconds)} ${list}`;
}
