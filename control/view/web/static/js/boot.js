// Before the first paint: apply the stored colours, and move the token out of the page's
// address, so that it is not copied with a link.
(() => {
  const root = document.documentElement;
  for (const name of ['theme', 'size']) {
    let value = null;
    try { value = localStorage.getItem(`nfqproxy.${name}`); } catch { /* no storage: the defaults */ }
    if (value) root.dataset[name] = value;
  }
  const token = /^#token=(.+)$/.exec(location.hash);
  if (token) {
    try { sessionStorage.setItem('nfqproxy.token', decodeURIComponent(token[1])); } catch { /* reads do without */ }
    history.replaceState(null, '', `${location.pathname}${location.search}#/`);
  }
})();
