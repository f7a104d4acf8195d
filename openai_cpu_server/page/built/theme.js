(()=>{try{let t=localStorage.getItem("ocs-theme");(t==="light"||t==="dark")&&(document.documentElement.dataset.theme=t)}catch{}})();
