// A shell in the lab of a course: a terminal of xterm.js over a WebSocket (see GET /v1/lesson/shell). It is loaded with the
// first shell only.

import { token } from './api.js';
import { h, setText } from './dom.js';
import { withSheets } from './sheets.js';

const FIRST = 250, LAST = 8000; // milliseconds until it is opened again: after the end of a unit, and at most
const LASTED = 5000; // milliseconds after which a shell that ends was a good one
const ACKNOWLEDGE = 64 << 10; // bytes of output after which the server is notified; it sends 512 KiB without
const INPUT = 32 << 10; // bytes in a message, at most

/** load loads the terminal and its style. */
async function load() {
  const style = h('link', { rel: 'stylesheet', href: '/vendored/xterm/xterm.css' });
  const styled = new Promise((resolve, reject) => { style.onload = resolve; style.onerror = () => reject(new Error('Cannot load the style of the terminal')); });
  document.head.append(style);
  const [{ Terminal }, { FitAddon }] = await Promise.all([import('/vendored/xterm/xterm.mjs'), import('/vendored/addon-fit/addon-fit.mjs'), styled]);
  return { Terminal, FitAddon };
}
let loaded = null;

/** look is the look of the page. */
function look() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const dark = style.colorScheme === 'dark';
  const [background, foreground] = [color('inset'), color('text')];
  const [red, green, yellow, blue, cyan] = ['bad', 'good', 'warn', 'accent', 'wait'].map(color);
  const magenta = dark ? '#d59bff' : '#8a3ab9';
  return {
    fontFamily: color('mono'), fontSize: Math.round(parseFloat(style.fontSize) * 0.93),
    theme: {
      background, foreground, cursor: blue, cursorAccent: background, selectionBackground: color('border-strong'), selectionForeground: foreground,
      black: dark ? color('border-strong') : foreground, red, green, yellow, blue, magenta, cyan, white: dark ? foreground : color('muted'),
      brightBlack: color('faint'), brightRed: red, brightGreen: green, brightYellow: yellow, brightBlue: blue, brightMagenta: magenta, brightCyan: cyan, brightWhite: foreground,
    },
  };
}

const protocolOf = (secret) => `nfqproxy.token.${btoa(secret).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '')}`;

export class Shell {
  constructor() {
    this.place = h('div', { class: 'shell-place' });
    this.state = h('p', { class: 'hint shell-state', role: 'status' });
    this.element = h('div', { class: 'shell-box' }, this.place, this.state);
    this.wait = FIRST;
  }

  async start() {
    setText(this.state, 'Opening a shell …');
    loaded ??= load();
    loaded.catch(() => { loaded = null; });
    const { Terminal, FitAddon } = await loaded.catch((e) => { setText(this.state, e.message); throw e; });
    if (this.left) return;
    this.terminal = new Terminal({ ...look(), scrollback: 5000, cursorBlink: false });
    this.fit = new FitAddon();
    this.terminal.loadAddon(this.fit);
    withSheets(() => this.terminal.open(this.place));
    this.terminal.onData((text) => this.send(new TextEncoder().encode(text)));
    this.terminal.onBinary((text) => this.send(Uint8Array.from(text, (c) => c.charCodeAt(0))));
    this.terminal.onResize(() => this.sendSize());
    this.resized = new ResizeObserver(() => this.fit.fit());
    this.resized.observe(this.place);
    this.looks = new MutationObserver(() => this.restyle());
    this.looks.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme', 'data-size'] });
    this.fit.fit();
    this.connect();
  }

  leave() {
    this.left = true;
    clearTimeout(this.retry);
    if (this.socket) this.socket.onmessage = null;
    if (this.socket?.readyState === WebSocket.CONNECTING) this.socket.onopen = (e) => e.target.close(); // else it is an error on the console
    else this.socket?.close();
    this.resized?.disconnect();
    this.looks?.disconnect();
    this.terminal?.dispose();
  }

  focus() { this.terminal?.focus(); }

  restyle() {
    Object.assign(this.terminal.options, look());
    this.fit.fit();
  }

  /** connect opens the shell, and again after its end: with the next unit, too. */
  connect() {
    const socket = new WebSocket(`${location.origin.replace(/^http/, 'ws')}/v1/lesson/shell`, ['nfqproxy.shell', protocolOf(token())]);
    socket.binaryType = 'arraybuffer';
    this.socket = socket;
    this.unacknowledged = 0;
    let opened = 0;
    socket.onopen = () => {
      opened = performance.now();
      this.terminal.reset();
      this.sendSize();
    };
    socket.onmessage = (e) => {
      setText(this.state, '');
      const data = new Uint8Array(e.data);
      this.terminal.write(data, () => { if (socket === this.socket) this.acknowledge(data.length); });
    };
    socket.onclose = (e) => {
      if (this.left) return;
      const lasted = opened && performance.now() - opened > LASTED;
      this.wait = lasted ? FIRST : Math.min(LAST, 2 * this.wait);
      if (e.code !== 1000 && this.wait > 4 * FIRST) setText(this.state, `No shell${e.reason ? `: ${e.reason}` : ''}. In a terminal: nfqproxy learn shell`);
      this.retry = setTimeout(() => this.connect(), this.wait);
    };
  }

  acknowledge(bytes) {
    this.unacknowledged += bytes;
    if (this.unacknowledged < ACKNOWLEDGE) return;
    this.post({ shown: this.unacknowledged });
    this.unacknowledged = 0;
  }

  sendSize() { this.post({ columns: this.terminal.cols, rows: this.terminal.rows }); }

  post(message) { if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message)); }

  send(bytes) {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    for (let i = 0; i < bytes.length; i += INPUT) this.socket.send(bytes.slice(i, i + INPUT));
  }
}
