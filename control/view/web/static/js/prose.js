// Texts with simple markup: HTML of a course's steps, and texts with `code`. What is not allowed here becomes plain text.

import { h } from './dom.js';

const allowed = new Set(['p', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'ul', 'ol', 'li', 'blockquote', 'pre', 'code', 'em', 'strong', 'br', 'hr']);
const dropped = new Set(['script', 'style', 'template', 'iframe', 'object', 'embed', 'noscript', 'svg', 'math']); // with what is in them

/** link makes a link out of the page, or to a view of it. Others have no address. */
function link(href, children) {
  if (href.startsWith('#/')) return h('a', { href }, children);
  const url = URL.parse(href);
  return ['http:', 'https:'].includes(url?.protocol) ? h('a', { href: url.href, target: '_blank', rel: 'noopener noreferrer' }, children) : children;
}

/** copies makes elements of their own for what is allowed. */
function copies(nodes) {
  return [...nodes].map((node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data;
    const name = node.localName;
    if (!name || dropped.has(name)) return null;
    if (name === 'img') return node.getAttribute('alt');
    const children = copies(node.childNodes);
    if (name === 'a') return link(node.getAttribute('href') ?? '', children);
    // A block that is wider than its place is scrolled, also with the keyboard.
    return allowed.has(name) ? h(name, name === 'pre' ? { tabindex: 0 } : name === 'ol' ? { start: node.getAttribute('start') } : null, children) : children;
  });
}

/** prose are the nodes of HTML. It is parsed into a document that runs and loads nothing, and copied by the lists above. */
export const prose = (html) => copies(new DOMParser().parseFromString(html, 'text/html').body.childNodes);

/** inline are the nodes of a text with `code`. */
export const inline = (text) => text.split('`').map((part, i, all) => (i % 2 === 0 ? part : i === all.length - 1 ? `\`${part}` : h('code', null, part)));
