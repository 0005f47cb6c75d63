// what is wider than the page scrolls, and arrow keys scroll only what can get the focus
function reach() {
  for (const box of document.querySelectorAll("pre, .wide")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("resize", reach);
document.addEventListener("toggle", reach, true); // a fold was opened
reach();
