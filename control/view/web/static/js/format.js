// Formatting of numbers, times and names.

const units = ['B', 'kB', 'MB', 'GB', 'TB'];

/** bytes formats 1487 as 1.5 kB. */
export function bytes(n) {
  let unit = 0;
  for (; n >= 999.5 && unit < units.length - 1; unit++) n /= 1000;
  return `${unit === 0 || n >= 99.5 ? Math.round(n) : n.toPrecision(2)} ${units[unit]}`;
}

/** seconds formats a duration in a suitable unit. */
export function seconds(x) {
  if (x === undefined || x === null) return '';
  if (x < 0.9995e-6) return `${Math.round(x * 1e9)} ns`;
  if (x < 0.9995e-3) return `${(x * 1e6).toFixed(x < 9.95e-6 ? 1 : 0)} µs`;
  if (x < 0.9995) return `${Math.round(x * 1e3)} ms`;
  if (x < 59.5) return `${x.toFixed(x < 9.95 ? 1 : 0)} s`;
  if (x < 3600) return `${Math.floor(x / 60)} min ${Math.round(x % 60)} s`;
  return `${Math.floor(x / 3600)} h ${Math.round((x % 3600) / 60)} min`;
}

/** offset formats the time from one clock's moment to another's, of whole milliseconds: it may be negative. */
export const offset = (x) => (x === 0 ? '< 1 ms' : x < 0 ? `−${seconds(-x)}` : `+${seconds(x)}`);

/** between is the time from one moment to another in seconds, with all digits: Date has milliseconds. */
export function between(from, to) {
  const fraction = (time) => Number(/\.\d+/.exec(time)?.[0] ?? 0), whole = (time) => Date.parse(time.replace(/\.\d+/, ''));
  return (whole(to) - whole(from)) / 1000 + fraction(to) - fraction(from);
}

/** clock formats a time of day with milliseconds. */
export function clock(time) {
  const t = new Date(time);
  const two = (n, width = 2) => String(n).padStart(width, '0');
  return `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}.${two(t.getMilliseconds(), 3)}`;
}

/** isToday is true for a time of this day. */
export const isToday = (time) => new Date(time).toDateString() === new Date().toDateString();

/** moment formats a time of day or, of another day, the date and the time. */
export function moment(time) {
  const t = new Date(time), two = (n) => String(n).padStart(2, '0');
  return isToday(time) ? clock(time) : `${two(t.getMonth() + 1)}-${two(t.getDate())} ${clock(time).slice(0, 8)}`;
}

export const number = (n) => Math.round(n).toLocaleString('en');

/** rate formats flows per second; a dash where the rate is not known yet. */
export const rate = (x) => (x === undefined ? '–' : x >= 10 || x === 0 ? number(x) : x.toFixed(1));

export const percent = (x) => `${x >= 0.0995 || x === 0 ? Math.round(x * 100) : (x * 100).toFixed(1)}%`;

export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

/** host removes the port from 10.0.0.1:80 and [fd00::1]:80. */
export const host = (address) => address.replace(/:\d+$/, '').replace(/^\[|\]$/g, '');

export const port = (address) => /:(\d+)$/.exec(address)?.[1] ?? '';

/** parts splits an address with a port: 10.0.0.1 and :80. */
export function parts(address) {
  const p = port(address);
  return p ? [address.slice(0, -p.length - 1), `:${p}`] : [address, ''];
}

/** split splits a namespace/name. */
export function split(name) {
  const at = name.indexOf('/');
  return at < 0 ? ['', name] : [name.slice(0, at), name.slice(at + 1)];
}

/** who names the source of a record: pod, machine, node or address. */
export const who = (r) => r.sourcePod || r.sourceHost || r.sourceNode || host(r.source);
