(() => {
  let kept = null;
  const say = s => s < 0.5 ? 'now' : s < 90 ? Math.round(s) + ' s ago' : s < 5400 ? Math.round(s / 60) + ' min ago'
    : s < 172800 ? Math.round(s / 3600) + ' h ago' : Math.round(s / 86400) + ' days ago';
  const tick = () => document.querySelectorAll('time[data-since]').forEach(each => {
    const since = parseFloat(each.dataset.since), text = say(Math.max(0, Date.now() / 1000 - since));
    if (each.textContent !== text) { each.textContent = text; each.title = new Date(since * 1000).toLocaleString(); }
  });
  document.addEventListener('focusin', event => { kept = event.target.id || null; });
  document.addEventListener('focusout', event => { if (document.contains(event.target)) setTimeout(() => {
    if (document.activeElement === document.body && document.getElementById(kept) === event.target) kept = null; }, 50); });
  const picks = new Set();
  document.addEventListener('change', event => { if (event.target.name === 'run') {
    event.target.checked ? picks.add(event.target.id) : picks.delete(event.target.id); } });
  new MutationObserver(() => {
    tick();
    picks.forEach(id => { const box = document.getElementById(id); if (box && !box.checked) box.checked = true; });
    if (kept && document.activeElement === document.body) { const again = document.getElementById(kept); if (again) again.focus(); }
  }).observe(document.documentElement, { childList: true, subtree: true });
  setInterval(tick, 1000);
})();
