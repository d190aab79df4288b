// Colours and text size: the system's until the user changes them; the choice is stored.

import { h, icon, replace } from './dom.js';

const root = document.documentElement;

function remember(name, value) {
  root.dataset[name] = value;
  try { localStorage.setItem(`nfqproxy.${name}`, value); } catch { /* for as long as the page is open, then */ }
}

const other = () => (root.dataset.theme === 'dark' ? 'light' : 'dark');

export function toggleTheme() { remember('theme', other()); }

export function toggleSize() {
  remember('size', root.dataset.size === 'large' ? 'normal' : 'large');
  dispatchEvent(new Event('resize')); // pictures are laid out for a size of letters
}

/** switches makes the two buttons. */
export function switches() {
  const colours = h('button', { type: 'button', class: 'switch', id: 'theme' });
  const size = h('button', { type: 'button', class: 'switch', id: 'size', title: 'Large text, for projectors (shortcut l)' }, icon('large'));
  const show = () => {
    replace(colours, icon(other() === 'dark' ? 'moon' : 'sun'));
    colours.setAttribute('aria-label', `Use ${other()} colours`);
    colours.title = `Use ${other()} colours (shortcut t)`;
    size.setAttribute('aria-label', 'Large text');
    size.setAttribute('aria-pressed', String(root.dataset.size === 'large'));
  };
  colours.addEventListener('click', toggleTheme);
  size.addEventListener('click', toggleSize);
  new MutationObserver(show).observe(root, { attributes: true, attributeFilter: ['data-theme', 'data-size'] });
  show();
  return [size, colours];
}
