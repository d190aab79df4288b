// Before the first paint: apply the stored colours or else the system's, and move the token out of
// the page's address, so that it is not copied with a link.
(() => {
  const { dataset } = document.documentElement, dark = matchMedia('(prefers-color-scheme: dark)');
  const stored = (name) => { try { return localStorage.getItem(`nfqproxy.${name}`); } catch { return null; } };
  const colours = () => { dataset.theme = stored('theme') ?? (dark.matches ? 'dark' : 'light'); };
  colours();
  dark.addEventListener('change', colours);
  dataset.size = stored('size') ?? 'normal';
  const token = /^#token=(.+)$/.exec(location.hash);
  if (token) {
    try { sessionStorage.setItem('nfqproxy.token', decodeURIComponent(token[1])); } catch { /* reads do without */ }
    history.replaceState(null, '', `${location.pathname}${location.search}#/`);
  }
})();
