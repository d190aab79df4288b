// The flow API (see control/observe). Errors are the API's own, with the field to blame.

import { host } from './format.js';
import { signIn } from './login.js';

export class ApiError extends Error {
  constructor(status, message, field) {
    super(message);
    this.status = status;
    this.field = field ?? '';
  }
}

/** token is that of this tab; '' if there is none that is valid in a header. */
export function token() {
  try {
    const value = sessionStorage.getItem('nfqproxy.token') ?? '';
    return /^[!-~]*$/.test(value) ? value : '';
  } catch { return ''; }
}

export function setToken(value) {
  try { sessionStorage.setItem('nfqproxy.token', value); } catch { /* required again next time */ }
}

const SHARE = 9; // a pause is so many times as long as a request
const LONGEST = 30000; // milliseconds, at most

const UNREACHABLE = 'Cannot reach the server. Is it still running?';

const request = (method, path, { headers, ...rest }, secret) => fetch(path, { method, headers: secret ? { ...headers, Authorization: `Bearer ${secret}` } : headers, ...rest });

/** problem converts an error response. */
async function problem(response) {
  const text = await response.text();
  let answer = null;
  try { answer = JSON.parse(text); } catch { /* as it is, then */ }
  return new ApiError(response.status, answer?.error ?? `Response ${response.status} from the server: ${text.slice(0, 200)}`, answer?.field);
}

/** send sends a request with the token. If the server requires a token to read, and there is none or a wrong one, it waits until the user has entered the right one. */
export async function send(method, path, options) {
  for (;;) {
    const sent = token();
    const response = await request(method, path, options, sent);
    if (response.status !== 401 || method !== 'GET') return response;
    if (token() !== sent) continue; // the right one was entered meanwhile
    const { message } = await problem(response);
    setToken(await signIn(sent && message, async (secret) => {
      try {
        const again = await request('GET', '/v1/stats', { headers: { Accept: 'application/json' } }, secret);
        return again.ok ? '' : (await problem(again)).message;
      } catch { return UNREACHABLE; }
    }));
  }
}

async function call(method, path, body, signal) {
  const headers = { Accept: 'application/json' };
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  let response;
  try {
    response = await send(method, path, { headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    throw new ApiError(0, UNREACHABLE);
  }
  if (response.status === 204) return null;
  if (!response.ok) throw await problem(response);
  try { return await response.json(); } catch { throw new ApiError(response.status, `The server's response to ${path} is not JSON`); }
}

export const get = (path, signal) => call('GET', path, undefined, signal);
export const post = (path, body, signal) => call('POST', path, body, signal);
export const remove = (path) => call('DELETE', path);

/** pause waits for some milliseconds. */
export const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

/** poll sends a request, and again some time after each response, until the signal aborts it. The time is longer where responses take long: neither the server nor the browser should be busy with them. */
export async function poll(path, milliseconds, signal, answered, failed) {
  while (!signal.aborted) {
    const began = performance.now();
    try {
      answered(await get(path, signal));
    } catch (e) {
      if (signal.aborted) return;
      failed(e);
    }
    await pause(Math.max(milliseconds, Math.min(LONGEST, SHARE * (performance.now() - began))));
  }
}

const RENEW = 60000; // milliseconds after which a pod that is not known may be a new one
let known = null, requested = 0;
const pods = new Map(); // names, by address

/** topology is requested once, and again after an error or for new pods. */
export function topology() {
  if (!known) requested = performance.now();
  known ??= get('/v1/topology').then((t) => {
    for (const p of t.pods) for (const a of p.addresses) pods.set(a, p.name);
    return t;
  }).catch((e) => { known = null; throw e; });
  return known;
}

/** renew requests the topology again: it has changed. */
export function renew() {
  known = null;
  topology().catch(() => { /* later, then */ });
}

/** podAt is the name of an endpoint's pod, or '' if it is not known. */
export function podAt(endpoint) {
  const name = pods.get(host(endpoint));
  if (name === undefined && known && performance.now() - requested > RENEW) {
    known = null;
    topology().catch(() => { /* later, then */ });
  }
  return name ?? '';
}
