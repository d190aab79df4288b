// Server-sent events, read with fetch: EventSource cannot send a token. Otherwise it follows
// the HTML standard (9.2, Server-sent events): open and error, named events, and reconnection
// with the ID of the last event.

import { pause, send } from './api.js';

const AGAIN = 3000; // milliseconds from the end of a connection to the next, unless the server sets it
const BREATH = 50; // milliseconds of work after which the page gets its turn

/** Parser parses a stream's text incrementally and dispatches its events. */
export class Parser {
  constructor(dispatch) {
    this.dispatch = dispatch; // (name, data)
    this.id = ''; // of the last event that had one
    this.retry = AGAIN;
    this.begin();
  }

  /** begin discards the state of a broken connection. */
  begin() {
    this.rest = '';
    this.cr = false; // the last text ended with one
    this.clear();
  }

  clear() {
    this.event = '';
    this.data = [];
    this.newID = this.id;
  }

  feed(text) {
    if (this.cr && text.startsWith('\n')) text = text.slice(1);
    this.cr = text.endsWith('\r');
    const lines = (this.rest + text).split(/\r\n|\r|\n/);
    this.rest = lines.pop();
    for (const line of lines) this.line(line);
  }

  line(line) {
    if (line === '') {
      this.id = this.newID;
      if (this.data.length > 0) this.dispatch(this.event || 'message', this.data.join('\n'));
      this.clear();
      return;
    }
    const colon = line.indexOf(':');
    if (colon === 0) return; // a keepalive
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (name === 'data') this.data.push(value);
    else if (name === 'event') this.event = value;
    else if (name === 'id' && !value.includes('\0')) this.newID = value;
    else if (name === 'retry' && /^\d+$/.test(value)) this.retry = Number(value);
  }
}

/** EventStream is an EventSource whose requests have the page's token. */
export class EventStream extends EventTarget {
  /** once: the response is a list, after which there is the event end. */
  constructor(url, once = false) {
    super();
    Object.assign(this, { url, once });
    this.abort = new AbortController();
    this.parser = new Parser((name, data) => {
      if (!this.abort.signal.aborted) this.dispatchEvent(new MessageEvent(name, { data, lastEventId: this.parser.id }));
    });
    this.run();
  }

  close() {
    this.abort.abort();
  }

  async run() {
    const { signal } = this.abort;
    while (!signal.aborted) {
      let read; // undefined: the connection broke
      try {
        read = await this.connect(signal);
      } catch { /* undefined */ }
      if (signal.aborted) return;
      if (read === false || this.once) this.close(); // a retry would not help, or it is the reader's
      if (read && this.once) { this.dispatchEvent(new Event('end')); return; }
      this.dispatchEvent(new Event('error'));
      await pause(this.parser.retry);
    }
  }

  /** connect reads one response to its end; false: it is not an event stream. */
  async connect(signal) {
    const headers = { Accept: 'text/event-stream' };
    if (this.parser.id) headers['Last-Event-ID'] = this.parser.id;
    const response = await send('GET', this.url, { headers, signal, cache: 'no-store' });
    if (response.status !== 200 || !/^text\/event-stream\b/.test(response.headers.get('Content-Type') ?? '')) {
      response.body?.cancel();
      return false;
    }
    this.parser.begin();
    this.dispatchEvent(new Event('open'));
    const reader = response.body.getReader();
    const decoder = new TextDecoder(); // which leaves out a byte order mark
    let began = performance.now();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return true;
      this.parser.feed(decoder.decode(value, { stream: true }));
      if (performance.now() - began > BREATH) {
        await pause(0);
        began = performance.now();
      }
    }
  }
}
