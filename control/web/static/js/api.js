// The flow API (see control/observe). Errors are the API's own, with the field to blame.

import { host } from './format.js';

export class ApiError extends Error {
  constructor(status, message, field) {
    super(message);
    this.status = status;
    this.field = field ?? '';
  }
}

export function token() {
  try { return sessionStorage.getItem('nfqproxy.token') ?? ''; } catch { return ''; }
}

export function setToken(value) {
  try { sessionStorage.setItem('nfqproxy.token', value); } catch { /* asked again next time */ }
}

// lists may be null in JSON: Go writes an empty one so.
const lists = new Set(['nodes', 'pods', 'hosts', 'services', 'holds', 'endpoints', 'candidates', 'excluded', 'addresses', 'steps']);
const revive = (key, value) => (value === null && lists.has(key) ? [] : value);

async function call(method, path, body, signal) {
  const headers = { Accept: 'application/json' };
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (method !== 'GET' && token()) headers.Authorization = `Bearer ${token()}`;
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    throw new ApiError(0, 'The server cannot be reached. Is it still running?');
  }
  if (response.status === 204) return null;
  const text = await response.text();
  let answer = null;
  try { answer = JSON.parse(text, revive); } catch { /* told below */ }
  if (!response.ok) throw new ApiError(response.status, answer?.error ?? `The server says ${response.status}: ${text.slice(0, 200)}`, answer?.field);
  if (answer === null) throw new ApiError(response.status, `The server's answer to ${path} is not JSON`);
  return answer;
}

export const get = (path, signal) => call('GET', path, undefined, signal);
export const post = (path, body, signal) => call('POST', path, body, signal);
export const remove = (path) => call('DELETE', path);

/** poll asks again and again, a time after each answer, until the signal ends it. */
export async function poll(path, milliseconds, signal, answered, failed) {
  while (!signal.aborted) {
    try {
      answered(await get(path, signal));
    } catch (e) {
      if (signal.aborted) return;
      failed(e);
    }
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      signal.addEventListener('abort', () => { clearTimeout(timer); resolve(); }, { once: true });
    });
  }
}

const RENEW = 60000; // milliseconds after which a pod that is not known may be a new one
let known = null, asked = 0;
const pods = new Map(); // names, by address

/** topology is asked for once, and again after an error or when there are new pods. */
export function topology() {
  if (!known) asked = performance.now();
  known ??= get('/v1/topology').then((t) => {
    for (const p of t.pods) for (const a of p.addresses) pods.set(a, p.name);
    return t;
  }).catch((e) => { known = null; throw e; });
  return known;
}

/** podAt names the pod of an endpoint, if the topology is known and tells; else ''. */
export function podAt(endpoint) {
  const name = pods.get(host(endpoint));
  if (name === undefined && known && performance.now() - asked > RENEW) {
    known = null;
    topology().catch(() => { /* later, then */ });
  }
  return name ?? '';
}
