"""Abbreviations that end with a full stop and no sentence, of some languages.

Only what is mostly followed by a capital letter or a number must be listed: a word in lower case never begins a
sentence. `tests/data/make_sentence_tables.py` writes `cpp/src/documents/abbreviations.inc` from these tables.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

# Abbreviations that never end a sentence, as they are written in its middle.
_NEVER = {
    "": "dr prof mr mrs ms mt st",  # in any
    "en": """
        mr mrs ms messrs mx dr drs prof rev revd hon st ste mt ft gen col maj capt cpt cmdr cdr lt sgt cpl pvt
        adm brig gov sen rep reps sens pres supt insp det atty dept fr sr br esq vs cf e.g i.e eg ie viz al ca
        approx assn mlle mme msgr mgr ald asst dist univ inc jan feb apr jun jul aug sept oct nov dec ph ph.d
        lt.col maj.gen ed eds trans p.s pfc sfc cpo ens hosp mdm
    """,
    "de": """
        hr hrn fr frl dr dres prof priv.-doz univ.-prof ao.univ.prof ass.prof mag ing dipl.-ing dipl med phil
        rer nat jur st bzw vgl evtl ggf inkl exkl zzgl abzgl ca etwa sog sogen bspw insb insbes bes bzgl betr
        gem lt laut z.b z.t d.h u.a i.d.r u.u o.ä s.o s.u z.zt i.a i.v v.a m.e u.ä d.i i.e e.g v.chr n.chr chr z
        d u i.allg str hrsg übers usw mio mrd tel vs allg entspr ehem geb gest hl kath ev jan feb apr jun jul
        aug sept okt nov dez kgl prov stud cand
    """,
    "fr": """
        m mm mr mme mmes mlle mlles dr drs pr prof me mgr st ste sts stes vve gal col cap lt cdt adj av bd boul
        pl env cf c.-à-d p.ex par.ex ex i.e e.g janv févr avr juil sept oct nov déc éd vol chap fig
    """,
    "es": """
        sr sra sres sras srta srtas d dña don dr dra dres dras prof profa lic ing arq gral cnel cap tte sgto sto
        sta fr mons excmo excma ilmo ilma rvdo av avda c/ pza ej p.ej aprox dpto gob ud uds vd vds ee uu ee.uu
        ff.aa rr.hh cf pág págs núm art fig vol tel ene feb abr jun jul ago sept oct nov dic lun mar mié jue vie
        sáb dom párrf ext cra s.a
    """,
    "it": """
        sig sigg sig.ra sig.na sig.re dott dott.ssa dr dr.ssa prof prof.ssa avv ing arch rag geom sen mons
        gen col cap ten magg s ss sant spett egr gent.mo gent.ma ill.mo p.es es ecc cfr v.le p.zza c.so pag fig
        art tel febb apr lug ott nov dic d.c a.c rev
    """,
    "pt": """
        sr sra srs sras srta dr dra drs dras prof profa profs eng arq gen cel cap ten maj sgt d dom exmo exma
        ilmo ilma rev pe sto sta av tel ex p.ex aprox pág págs fig vol núm cf séc
    """,
    "nl": """
        dhr mevr mw dr drs ir ing prof mr jhr jkvr ds st gen kol kap lt bijv bv b.v d.w.z d.i o.a m.b.t i.v.m
        t.a.v m.a.w o.l.v blz vgl resp incl excl ca nl fam t.w z.g.a.n zgn evt ong
    """,
    "da": """
        hr fr frk skt dr prof pastor f.eks fx bl.a mht vedr ca evt inkl ekskl nr sml jf kl pkt kap stk iflg m.fl
        d.v.s kgl adm dir gen
    """,
    "sv": "hr fr dr prof t.ex bl.a d.v.s dvs ca resp inkl exkl jfr kl st s.k obs avd tel o.d fr.o.m t.o.m",
    "no": "hr fr dr prof f.eks bl.a dvs ca evt inkl ekskl jf kl st tlf d.v.s o.l",
    "fi": "hra rva nti tri dr prof esim mm ns so ts t.s ks vrt n eaa huom",
    "pl": """
        p pp dr prof mgr inż hab lek ks o św gen płk mjr kpt por sierż al ul pl np m.in tzn tzw tj wg ok ww jw
        im godz tel nr zob red wyd
    """,
    "cs": """
        p pí sl dr ing mgr bc mudr judr phdr rndr prof doc csc sv gen plk mjr kpt por např tzv tj resp popř mj
        str tel ul nám
    """,
    "sk": """
        p pí sl dr ing mgr bc mudr judr phdr rndr prof doc csc sv gen plk mjr kpt npor napr tzv tj resp príp str
        tel ul nám
    """,
    "ro": "dl dna dnul dra dr prof ing av gen col mr cpt sf str bd nr ex cca aprox",
    "hu": "dr prof ifj id özv szt pl kb ill stb ún u pf tel",
    "tr": "dr prof doç av sn yrd gen alb yb bnb yzb vb örn bkz cad sok mah",
    "ru": """
        г гг гор д обл р р-н пл ул пр просп пер наб пос дер им т.е т.к т.н т.д и.о проф акад доц д-р г-н г-жа
        тов гр мр ст см ср напр св о рис табл гл стр тыс пгт млн млрд руб долл кв корп н.э
    """,
    "uk": """
        м р обл вул просп пров пл ім т.зв т.д проф акад доц св див напр гл рис табл тис млн млрд грн кв журн чл
        стор вид год
    """,
    "bg": "г гр ул бул пл св д-р проф доц инж акад т.е т.нар напр вж ок чл стр",
    "el": "κ κκ κα δρ καθ αγ π.χ δηλ βλ πρβλ σελ αρ λεωφ οδ",
    "kk": "т.б проф акад доц қ көш обл р",
}
# Abbreviations that end no sentence before a number.
_BEFORE_NUMBERS = {
    "": "n° nº nr № vol",
    "en": "no nos art pp p sec fig figs ch chap vol para cl eq eqs tab ref n° mar pt bk vs ver c nr",
    "de": "nr nrn art abs s bd kap abb tab hs ziff rn az mär fig rz ver",
    "fr": "n no nos n° p pp art chap fig vol t tél réf al",
    "es": "no n nº nro núm p pp págs art",
    "it": "n nn nr p pp art artt vol",
    "pt": "n nº no p pp art arts",
    "nl": "nr nrs art p blz jan feb mrt apr jun jul aug sep okt nov dec",
    "da": "nr art s par",
    "sv": "nr s kap",
    "no": "nr s kap",
    "fi": "nro s",
    "pl": "nr s str art ust pkt poz t r",
    "cs": "č s odst roč",
    "sk": "č s ods roč",
    "ro": "nr art pag",
    "hu": "sz",
    "tr": "no s",
    "ru": "п пп № ч т с н",
    "uk": "п ч т с ст хв год",
    "bg": "с т",
    "el": "σ αρ",
}
# First words that make an end of what may be none: of an initial ("the U.S. It"), of an ordinal ("am 3. Es").
_STARTERS = {
    "en": """
        A An And At But By Did Do Does For From He Her His How However I If In Is It Its My No Not On Our She So
        That The Their Then There These They This Those To Was We Were What When Where Which While Who Why Will
        With You Your
    """,
    "de": """
        Aber Als Am An Auch Auf Aus Bei Bis Da Damit Danach Dann Das Dass Dem Den Denn Der Des Die Dies Diese
        Dieser Dieses Doch Dort Du Durch Ein Eine Einen Einer Er Es Für Hier Ich Ihr Im In Ist Ja Jedoch Man Mit
        Nach Nein Nicht Noch Nun Nur Ob Oder Sein Seine Seit Sie So Über Und Vom Von Vor Wann War Warum Was Wenn
        Wer Wie Wir Wo Zu
    """,
    "fr": """
        À Au Aux Avec Ce Ces Cette Comme Dans De Des Du Elle Elles En Et Il Ils Je La Le Les Leur Mais Nous On
        Or Ou Où Par Pour Puis Quand Que Qui Sa Sans Ses Si Son Sur Tu Un Une Vous
    """,
    "es": """
        Al Aquí Así Como Con Cuando De Del El Ella Ellos En Entre Es Esta Este Esto La Las Lo Los No Nos Para
        Pero Por Que Se Si Sin Su Sus También Tras Un Una Y Ya Yo
    """,
    "it": """
        Al Alla Anche Che Come Con Da Dal Dalla Di E È Gli I Il In La Le Lo Ma Nel Nella Non Per Perché Poi
        Quando Questa Questo Se Si Sono Su Un Una Uno
    """,
    "pt": """
        A Ao As Até Com Como Da De Depois Do E Ela Ele Eles Em Esta Este Isso Isto Mas Na Não No O Os Para Por
        Quando Que Se Também Um Uma
    """,
    "nl": """
        Als Bij Daar Dan Dat De Deze Die Dit Een En Er Haar Het Hij Hoe Hun Ik In Is Maar Met Na Naar Niet Om
        Ook Op Te Uit Van Voor Waar Wat We Wie Wij Ze Zij Zijn Zo
    """,
    "da": """
        Af Da De Den Der Det Du En Er Et For Han Har Her Hun Hvad Hvis Hvor I Ikke Jeg Men Nu Når Og Om På Så
        Til Ved Vi
    """,
    "sv": "Av De Den Det Du En Ett För Han Har Här Hon Hur I Jag Men När Nu Och Om På Så Till Under Vad Vi",
    "no": """
        Av Da De Den Der Det Du En Er Et For Han Har Her Hun Hva Hvis Hvor I Ikke Jeg Men Nå Når Og Om På Så Til
        Ved Vi
    """,
    "fi": "Ei Että Hän He Ja Jos Kun Me Minä Mutta Myös Ne Niin Nyt On Se Sen Siellä Sinä Tämä Vaan",
    "pl": """
        A Ale Bo Był Być Co Dla Do Gdy I Ich Jak Jednak Jego Jej Jest Już Kiedy Kto Na Nie O Od On Ona Oni Po
        Pod Przed Przez Się Ta Tak Te Ten To W Wtedy Z Za Że
    """,
    "cs": """
        A Ale Aby Do Já Jak Je Jeho Její Když Kde Kdo Mezi Na Ne Ona Oni Po Pro Proto Se Tak Tato Tento To V Ve
        Však Za Ze
    """,
    "sk": """
        A Ale Aby Do Ja Ako Je Jeho Jej Keď Kde Kto Medzi Na Nie Ona Oni Po Pre Preto Tak Táto Tento To V Vo
        Však Za Zo
    """,
    "ru": """
        А Без Был Была Было В Во Все Вы Да Для До Его Ее Если Есть За И Из Или Их К Как Когда Кто Мы На Но О Об
        Он Она Они Оно От По При С Так Такие То Также У Что Эта Это Этот Я
    """,
    "uk": "А Але Без В Вона Вони Він Для До З За І Його Коли Ми На Не Ну Про Та Так Це Цей Що Я Як",
}
# Languages that write ordinals with a full stop ("am 3. Oktober").
_ORDINALS = "de da no fi is pl cs sk sl hr sr bs hu et lv tr kk".split()
# Codes of three letters, and others, of these languages.
CODES = dict(
    pair.split("=")
    for pair in """
        eng=en deu=de ger=de fra=fr fre=fr spa=es ita=it por=pt nld=nl dut=nl dan=da swe=sv nor=no nob=no nno=no nb=no
        nn=no fin=fi pol=pl ces=cs cze=cs slk=sk slo=sk ron=ro rum=ro hun=hu tur=tr rus=ru ukr=uk bul=bg ell=el gre=el
        kaz=kk isl=is slv=sl hrv=hr srp=sr bos=bs est=et lav=lv lvs=lv
    """.split()
)
# Languages of which something is known; "" is what is known of any.
LANGUAGES = sorted({*_NEVER, *_ORDINALS})


@dataclass(frozen=True)
class Abbreviations:
    """Abbreviations of a language, and other words that decide whether a full stop ends a sentence.

    Attributes:
        never: words before a full stop that never end a sentence.
        before_numbers: abbreviations that do not end a sentence before a number.
        starters: words that begin a sentence after an initial or an ordinal.
        ordinals: whether a number of two digits at most may be an ordinal.
    """

    never: frozenset[str]
    before_numbers: frozenset[str]
    starters: frozenset[str]
    ordinals: bool


def code_of(language: str | None) -> str | None:
    """Return the code of two letters of a language, as "de" of "deu_Latn" and "de_DE"; None for an unknown one."""
    if language is None:
        return None
    letters = re.search("[A-Za-z]+", language)
    if letters:
        code = letters[0].lower()
    else:
        code = ""
    return CODES.get(code, code)


@lru_cache(64)
def abbreviations_of(language: str | None) -> Abbreviations:
    """The tables of a language; those of all languages together where it is unknown, and empty ones if it has none."""
    code = code_of(language)

    def words(table: Mapping[str, str]) -> frozenset[str]:
        return frozenset(word for each in table if code is None or each in ("", code) for word in table[each].split())

    def forms(table: Mapping[str, str]) -> frozenset[str]:
        """Return the words in lower case, with a capital, and in capitals."""
        return frozenset(form for each in words(table) for form in (each, each[0].upper() + each[1:], each.upper()))

    return Abbreviations(forms(_NEVER), forms(_BEFORE_NUMBERS), words(_STARTERS), code in _ORDINALS)
