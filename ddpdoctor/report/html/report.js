// Enhancement only: the page is complete without it.
"use strict";
(function () {
  var live = document.createElement("p");
  live.className = "unseen";
  live.setAttribute("role", "status");
  document.body.appendChild(live);

  function fallback(node) {
    var range = document.createRange();
    range.selectNodeContents(node);
    var selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    return document.execCommand("copy");
  }

  function done(button, ok) {
    button.textContent = ok ? "Copied" : "Select and copy";
    live.textContent = ok ? "Copied to the clipboard" : "Could not copy";
    window.setTimeout(function () { button.textContent = "Copy"; }, 1600);
  }

  document.querySelectorAll(".command").forEach(function (box) {
    var code = box.querySelector("code");
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy the command");
    button.addEventListener("click", function () {
      if (navigator.clipboard && window.isSecureContext) {
        navigator.clipboard.writeText(code.textContent).then(
          function () { done(button, true); },
          function () { done(button, fallback(code)); }
        );
      } else {
        done(button, fallback(code));
      }
    });
    box.appendChild(button);
  });

  // a link to a place inside a folded part opens it
  function reveal() {
    var target = location.hash ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
    for (var each = target; each; each = each.parentElement) {
      if (each.tagName === "DETAILS") { each.open = true; }
    }
  }
  window.addEventListener("hashchange", reveal);
  reveal();
})();
